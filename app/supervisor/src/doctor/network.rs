//! Check of the host's IPv6 network.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use pontoon_process::Fix;

use super::{Check, Status};
use crate::host::source_addresses;

const NAME: &str = "ipv6";

/// State of IPv6 on the host.
#[derive(Clone, Copy, Debug)]
struct Ipv6 {
    /// True if the kernel has the address family.
    supported: bool,
    /// True if `net.ipv6.conf.all.disable_ipv6` is set.
    disabled: bool,
    /// Address from which the host sends to other hosts.
    source: Option<IpAddr>,
}

/// Checks that the host has an IPv6 network. A guest uses IPv4 without it.
pub(super) fn ipv6() -> Check {
    let [_, source] = source_addresses();
    let disabled = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    judge(Ipv6 {
        supported: Path::new("/proc/net/if_inet6").exists(),
        disabled: disabled.is_ok_and(|value| value.trim() == "1"),
        source,
    })
}

fn judge(host: Ipv6) -> Check {
    let (found, fix) = match host {
        Ipv6 {
            source: Some(source), ..
        } => return Check::ok(NAME, format!("the host sends from {source}")),
        Ipv6 { supported: false, .. } => (
            "the kernel has no IPv6",
            Fix::user("a boot without the kernel parameter ipv6.disable=1"),
        ),
        Ipv6 { disabled: true, .. } => (
            "net.ipv6.conf.all.disable_ipv6 is 1",
            Fix::root("sysctl -w net.ipv6.conf.all.disable_ipv6=0"),
        ),
        _ => (
            "the host has no IPv6 address with a route to other networks",
            Fix::user("an IPv6 address and a default route of the host"),
        ),
    };
    let consequence = "the guest reaches no IPv6 destination outside of the host";
    Check::finding(Status::Note, NAME, found, consequence, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_a_note() {
        let works = Ipv6 {
            supported: true,
            disabled: false,
            source: Some("2001:db8::1".parse().unwrap()),
        };
        assert_eq!(judge(works), Check::ok("ipv6", "the host sends from 2001:db8::1"));
        let none = Ipv6 {
            source: None,
            ..works
        };
        let disabled = Ipv6 {
            disabled: true,
            ..none
        };
        let unsupported = Ipv6 {
            supported: false,
            ..none
        };
        let found = [none, disabled, unsupported].map(|host| {
            let check = judge(host);
            assert_eq!(check.status, Status::Note);
            check.found
        });
        assert!(found[0].contains("no IPv6 address"));
        assert!(found[1].contains("disable_ipv6 is 1"));
        assert!(found[2].contains("the kernel has no IPv6"));
    }
}
