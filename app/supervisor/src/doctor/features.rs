//! Checks of the kernel: its release, features of host sockets, ping sockets, vhost-net.

use pontoon_host::HostFeatures;
use pontoon_process::Fix;
use pontoon_process::error::Error;
use pontoon_sys::disabled::{Disabled, VARIABLE};
use pontoon_sys::tun::TapOffload;
use pontoon_sys::{Family, icmp, seqpacket};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{Check, DEADLINE, Status, trial};
use crate::guest::init::last_mapped;
use crate::guest::vhost;
use crate::host::open_raw_icmp;

/// Oldest kernel release that Pontoon supports.
const OLDEST: (u32, u32) = (5, 15);

const PEEK_OFF: &str = "tcp-peek-off";
const GSO: &str = "udp-gso";
const GRO: &str = "udp-gro";
const PASS_RIGHTS: &str = "pass-rights";
const PING: &str = "ping-sockets";
const VHOST_NET: &str = "vhost-net";

/// Returns the remedy for a feature of the kernel that this kernel lacks, or that `PONTOON_DISABLE` disables.
pub(super) fn newer(is_disabled: bool, release: &str) -> Fix {
    match is_disabled {
        true => Fix::user(format!("unset {VARIABLE}")),
        false => Fix::user(format!("Linux {release} or later")),
    }
}

/// Checks the release of the kernel.
pub(super) fn kernel() -> Check {
    let name = rustix::system::uname();
    judge_kernel(
        &name.release().to_string_lossy(),
        &name.machine().to_string_lossy(),
    )
}

fn judge_kernel(release: &str, machine: &str) -> Check {
    let found = format!("Linux {release}, {machine}");
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    let is_old = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < OLDEST,
        _ => false,
    };
    if !is_old {
        return Check::ok("kernel", found);
    }
    let consequence = "Pontoon is not tested with this kernel, and may not start";
    Check::finding(
        Status::Loss,
        "kernel",
        found,
        consequence,
        newer(false, "5.15").or("6.12 to be fast"),
    )
}

/// Results of the tests of host sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SocketFeatures {
    peek_off: [bool; 2],
    gso: bool,
    gro: bool,
    pass_rights: bool,
}

/// Tests the features of host sockets as the engine does.
pub(super) fn sockets(disabled: &Disabled) -> Vec<Check> {
    let tried = trial::run(DEADLINE, || {
        let host = HostFeatures::probe(disabled);
        SocketFeatures {
            peek_off: host.peek_off,
            gso: host.udp_gso,
            gro: host.udp_gro,
            pass_rights: seqpacket::refuses_descriptors(),
        }
    });
    match tried {
        Ok(features) => judge_sockets(features, disabled),
        Err(error) => vec![Check::incomplete(PEEK_OFF, &error)],
    }
}

fn judge_sockets(features: SocketFeatures, disabled: &Disabled) -> Vec<Check> {
    let check = |name, feature: &str, has: bool, consequence: &str, fix: Fix| match has {
        true => Check::ok(name, format!("the kernel has {feature}")),
        false => Check::finding(
            Status::Loss,
            name,
            format!("the kernel has no {feature}"),
            consequence,
            fix,
        ),
    };
    let [v4, v6] = features.peek_off;
    let peek_off = match (v4, v6) {
        (true, false) => "SO_PEEK_OFF for TCP over IPv6",
        _ => "SO_PEEK_OFF for TCP",
    };
    vec![
        check(
            PEEK_OFF,
            peek_off,
            v4 && v6,
            "downloads are slower: data in flight is read once more for each segment",
            newer(disabled.peek_off, "6.12"),
        ),
        check(
            GSO,
            "UDP_SEGMENT",
            features.gso,
            "datagrams of the guest are sent one by one",
            newer(disabled.udp_gso, "4.18"),
        ),
        check(
            GRO,
            "UDP_GRO",
            features.gro,
            "datagrams to the guest are received one by one",
            newer(disabled.udp_gro, "5.0"),
        ),
        check(
            PASS_RIGHTS,
            "SO_PASSRIGHTS",
            features.pass_rights,
            "an attacker who controls the engine can send descriptors to the supervisor, and delay it by them",
            newer(false, "6.16"),
        ),
    ]
}

/// Results of opening sockets for ICMP echo requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EchoSockets {
    /// For IPv4 and IPv6: true if a ping socket can be opened.
    ping: [bool; 2],
    /// True if the kernel refuses a ping socket to the groups of this process.
    denied: bool,
    /// For IPv4 and IPv6: true if a raw socket can be opened.
    raw: [bool; 2],
    /// Value of `net.ipv4.ping_group_range`.
    range: Option<String>,
    /// Last group of the range from 0 that the user namespace maps.
    last_group: u32,
}

/// Opens ping sockets, or else raw sockets, as the engine and the supervisor do.
pub(super) fn ping() -> Check {
    let tried = trial::run(DEADLINE, || {
        let ping = [Family::V4, Family::V6].map(icmp::open_ping);
        let raw = open_raw_icmp().unwrap_or_default();
        let read = |path| std::fs::read_to_string(path).ok();
        let range = read("/proc/sys/net/ipv4/ping_group_range");
        EchoSockets {
            denied: ping.iter().any(|socket| matches!(socket, Err(Errno::ACCESS))),
            ping: ping.map(|socket| socket.is_ok()),
            raw: raw.map(|socket| socket.is_some()),
            range: range.map(|range| range.split_whitespace().collect::<Vec<_>>().join(" ")),
            last_group: last_mapped(&read("/proc/self/gid_map").unwrap_or_default()),
        }
    });
    match tried {
        Ok(sockets) => judge_ping(&sockets),
        Err(error) => Check::incomplete(PING, &error),
    }
}

fn judge_ping(sockets: &EchoSockets) -> Check {
    if sockets.ping[0] {
        return Check::ok(PING, "the user may open ping sockets");
    }
    if sockets.raw[0] {
        return Check::ok(PING, "raw sockets take the place of ping sockets");
    }
    let range = match (&sockets.range, sockets.denied) {
        (Some(range), true) => format!("no group of the user is in net.ipv4.ping_group_range ({range})"),
        (_, true) => "the kernel refuses ping sockets to the user".to_owned(),
        (_, false) => "ping sockets cannot be opened".to_owned(),
    };
    let fix = match sockets.denied {
        true => Fix::root(format!(
            "sysctl -w net.ipv4.ping_group_range='0 {}'",
            sockets.last_group
        )),
        false => Fix::user("a kernel with ping sockets, and a container's seccomp profile that permits them"),
    };
    Check::finding(
        Status::Loss,
        PING,
        range,
        "echo requests of the guest to other hosts get no reply",
        fix,
    )
}

/// Checks that vhost-net can be used. It is not used by default.
pub(super) fn vhost_net(disabled: &Disabled) -> Check {
    let offload = TapOffload::all_but(disabled);
    let tried = trial::run(DEADLINE, || {
        vhost::usable(offload, disabled).map_err(|error| {
            let (what, advice, _) = error.parts();
            (what.to_owned(), advice.map(str::to_owned))
        })
    });
    match tried {
        Ok(result) => judge_vhost(result.map_err(|(what, advice)| match advice {
            Some(advice) => Error::new(what).advise(advice),
            None => Error::new(what),
        })),
        Err(error) => Check::incomplete(VHOST_NET, &error),
    }
}

fn judge_vhost(result: Result<(), Error>) -> Check {
    let Err(error) = result else {
        return Check::ok(VHOST_NET, "/dev/vhost-net can be opened");
    };
    let (what, advice, _) = error.parts();
    let fix = match advice {
        Some(advice) => Fix::of_advice(advice),
        None if what.contains(VARIABLE) => newer(true, ""),
        None => Fix::root("modprobe vhost_net"),
    };
    let consequence = "--vhost-net on fails, and --vhost-net auto uses the tap without it";
    Check::finding(Status::Note, VHOST_NET, what, consequence, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernel_is_a_loss() {
        assert_eq!(
            judge_kernel("6.18.44-x", "x86_64"),
            Check::ok("kernel", "Linux 6.18.44-x, x86_64")
        );
        assert_eq!(judge_kernel("5.15", "x86_64").status, Status::Ok);
        assert_eq!(judge_kernel("5.10.0-1", "x86_64").status, Status::Loss);
        assert_eq!(judge_kernel("unknown", "x86_64").status, Status::Ok);
    }

    #[test]
    fn each_missing_feature_of_sockets_is_a_loss() {
        let all = SocketFeatures {
            peek_off: [true; 2],
            gso: true,
            gro: true,
            pass_rights: true,
        };
        let judge = |features| judge_sockets(features, &Disabled::default());
        assert!(judge(all).iter().all(|check| check.status == Status::Ok));
        let none = SocketFeatures {
            peek_off: [false; 2],
            gso: false,
            gro: false,
            pass_rights: false,
        };
        let found: Vec<_> = judge(none)
            .into_iter()
            .map(|check| (check.status, check.found))
            .collect();
        let expected = ["SO_PEEK_OFF for TCP", "UDP_SEGMENT", "UDP_GRO", "SO_PASSRIGHTS"];
        let expected = expected.map(|name| (Status::Loss, format!("the kernel has no {name}")));
        assert_eq!(found, expected);
        let half = SocketFeatures {
            peek_off: [true, false],
            ..all
        };
        let check = judge(half).remove(0);
        assert_eq!(check.found, "the kernel has no SO_PEEK_OFF for TCP over IPv6");
        assert_eq!(check.fix, Some(Fix::user("Linux 6.12 or later")));
        let disabled = Disabled {
            peek_off: true,
            ..Disabled::default()
        };
        let check = judge_sockets(none, &disabled).remove(0);
        assert_eq!(check.fix, Some(Fix::user("unset PONTOON_DISABLE")));
    }

    #[test]
    fn ping_needs_a_ping_socket_or_a_raw_socket() {
        let sockets = EchoSockets {
            ping: [false; 2],
            denied: true,
            raw: [false; 2],
            range: Some("1 0".to_owned()),
            last_group: 65_535,
        };
        let check = judge_ping(&sockets);
        assert_eq!(check.status, Status::Loss);
        assert_eq!(
            check.found,
            "no group of the user is in net.ipv4.ping_group_range (1 0)"
        );
        assert_eq!(
            check.fix,
            Some(Fix::root("sysctl -w net.ipv4.ping_group_range='0 65535'"))
        );
        for works in [[true; 2], [true, false]] {
            let ping = EchoSockets {
                ping: works,
                ..sockets.clone()
            };
            let raw = EchoSockets {
                raw: works,
                ..sockets.clone()
            };
            assert_eq!(
                [judge_ping(&ping).status, judge_ping(&raw).status],
                [Status::Ok; 2]
            );
        }
        let other = EchoSockets {
            denied: false,
            ..sockets
        };
        assert_eq!(judge_ping(&other).found, "ping sockets cannot be opened");
    }

    #[test]
    fn missing_vhost_net_is_a_note() {
        assert_eq!(judge_vhost(Ok(())).status, Status::Ok);
        let missing = Error::new("cannot open /dev/vhost-net: x").advise("as root: modprobe vhost_net");
        let check = judge_vhost(Err(missing));
        assert_eq!(
            (check.status, check.fix),
            (Status::Note, Some(Fix::root("modprobe vhost_net")))
        );
        let check = judge_vhost(Err(Error::new("disabled by PONTOON_DISABLE")));
        assert_eq!(check.fix, Some(Fix::user("unset PONTOON_DISABLE")));
    }
}
