//! Choice of the guest's subnets: those of the options, or the first candidates that the host does not use.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pontoon_engine::config::{Addresses, V4, V6};
use pontoon_process::error::Error;

use crate::host::network::HostNetwork;
use crate::options::Ipv6;

/// Addresses that were chosen for the guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubnetChoice {
    /// Addresses of the guest, its gateway and the DNS forwarder.
    pub(crate) addresses: Addresses,
    /// Default subnets that the guest does not use, because the host uses them.
    pub(crate) moved: ReplacedDefaults,
}

/// Default subnets that a network of the host overlaps, so that the guest has another subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplacedDefaults {
    /// True if the host uses 10.0.2.0/24.
    pub(crate) v4: bool,
    /// True if the host uses fd70:6f6e:746f::/64.
    pub(crate) v6: bool,
}

/// Chooses the guest's subnets.
///
/// # Errors
/// A subnet of the options is not valid for a guest, or the host uses all candidates.
pub(crate) fn choose(ipv4: Option<Ipv4Net>, ipv6: Ipv6, host: &HostNetwork) -> Result<SubnetChoice, Error> {
    let mut moved = ReplacedDefaults::default();
    let v4 = match ipv4 {
        Some(subnet) => check_v4(subnet)?,
        None => {
            let free = candidates_v4().find(|subnet| !host.uses(IpNet::V4(*subnet)));
            let free = free.ok_or_else(|| {
                Error::new("no IPv4 subnet for the guest: the host uses all private subnets")
                    .advise("--ipv4 CIDR")
            })?;
            moved.v4 = Some(free) != candidates_v4().next();
            free
        }
    };
    let v6 = match ipv6 {
        Ipv6::Off => None,
        Ipv6::Subnet(subnet) => Some(check_v6(subnet)?),
        Ipv6::Auto => {
            let free = candidates_v6().find(|subnet| !host.uses(IpNet::V6(*subnet)));
            let free = free.ok_or_else(|| {
                Error::new("no IPv6 subnet for the guest: the host uses all candidate subnets")
                    .advise("--ipv6 CIDR, or --no-ipv6")
            })?;
            moved.v6 = Some(free) != candidates_v6().next();
            Some(free)
        }
    };
    let addresses = Addresses {
        v4: V4::of(v4),
        v6: v6.map(|subnet| V6::of(subnet, host.ipv6_default)),
    };
    Ok(SubnetChoice { addresses, moved })
}

fn candidates_v4() -> impl Iterator<Item = Ipv4Net> {
    let ten = (2..=255).map(|third| [10, 0, third, 0]);
    let twelve = (0..=255).map(|third| [172, 31, third, 0]);
    let sixteen = (0..=255).map(|third| [192, 168, third, 0]);
    let all = ten.chain(twelve).chain(sixteen);
    all.map(|octets| Ipv4Net::new_assert(octets.into(), 24))
}

fn candidates_v6() -> impl Iterator<Item = Ipv6Net> {
    // The bytes behind fd are "pont" in ASCII.
    (0..=u16::MAX).map(|fourth| Ipv6Net::new_assert([0xfd70, 0x6f6e, 0x746f, fourth, 0, 0, 0, 0].into(), 64))
}

fn check_v4(subnet: Ipv4Net) -> Result<Ipv4Net, Error> {
    if subnet.trunc() != subnet {
        let whole = subnet.trunc();
        return Err(
            Error::new(format!("{subnet} is an address, not a subnet")).advise(format!("--ipv4 {whole}"))
        );
    }
    if !(8..=27).contains(&subnet.prefix_len()) {
        return Err(Error::new(format!(
            "{subnet} cannot be the guest's subnet: its prefix length is not between 8 and 27"
        )));
    }
    let network = subnet.network();
    let first = network.octets()[0];
    if first == 0 || first >= 224 || network.is_loopback() || network.is_link_local() {
        return Err(Error::new(format!(
            "{subnet} cannot be the guest's subnet: no unicast addresses"
        ))
        .advise("one of 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16"));
    }
    Ok(subnet)
}

fn check_v6(subnet: Ipv6Net) -> Result<Ipv6Net, Error> {
    if subnet.prefix_len() != 64 {
        return Err(Error::new(format!(
            "{subnet} cannot be the guest's subnet: not a /64"
        )));
    }
    if subnet.trunc() != subnet {
        let whole = subnet.trunc();
        return Err(
            Error::new(format!("{subnet} is an address, not a subnet")).advise(format!("--ipv6 {whole}"))
        );
    }
    let network = subnet.network();
    // ::/64 contains the loopback, the IPv4-mapped and the unspecified addresses.
    if network.is_multicast() || network.is_unicast_link_local() || network.is_unspecified() {
        return Err(Error::new(format!(
            "{subnet} cannot be the guest's subnet: no unicast addresses"
        ))
        .advise("a /64 of fd00::/8"));
    }
    Ok(subnet)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(addresses: &[&str], routes: &[&str]) -> HostNetwork {
        let nets = |list: &[&str]| list.iter().map(|net| net.parse().unwrap()).collect();
        HostNetwork {
            addresses: nets(addresses),
            routes: nets(routes),
            ..HostNetwork::default()
        }
    }

    fn chosen(host: &HostNetwork) -> (String, String) {
        let addresses = choose(None, Ipv6::Auto, host).unwrap().addresses;
        (
            addresses.v4.subnet.to_string(),
            addresses.v6.unwrap().subnet.to_string(),
        )
    }

    #[test]
    fn default_subnets_are_used_if_free() {
        let choice = choose(
            None,
            Ipv6::Auto,
            &host(&["192.0.2.2/24", "fd00::2/64"], &["0.0.0.0/0"]),
        )
        .unwrap();
        assert_eq!(choice.moved, ReplacedDefaults::default());
        let v4 = choice.addresses.v4;
        assert_eq!(
            [v4.gateway, v4.dns, v4.guest].map(|address| address.to_string()),
            ["10.0.2.2", "10.0.2.3", "10.0.2.15"]
        );
        let v6 = choice.addresses.v6.unwrap();
        assert_eq!(
            [v6.gateway, v6.dns, v6.guest, v6.router].map(|address| address.to_string()),
            [
                "fd70:6f6e:746f::2",
                "fd70:6f6e:746f::3",
                "fd70:6f6e:746f::15",
                "fe80::2"
            ]
        );
    }

    #[test]
    fn subnets_of_the_host_are_skipped() {
        let nested = host(&["10.0.2.15/24", "fd70:6f6e:746f::15/64"], &["0.0.0.0/0"]);
        assert_eq!(
            chosen(&nested),
            ("10.0.3.0/24".into(), "fd70:6f6e:746f:1::/64".into())
        );
        let moved = choose(None, Ipv6::Auto, &nested).unwrap().moved;
        assert_eq!(moved, ReplacedDefaults { v4: true, v6: true });

        let routed = host(&[], &["10.0.2.128/25", "fd70:6f6e:746f::/48"]);
        assert!(choose(None, Ipv6::Auto, &routed).is_err());
        assert_eq!(
            choose(None, Ipv6::Off, &routed)
                .unwrap()
                .addresses
                .v4
                .subnet
                .to_string(),
            "10.0.3.0/24"
        );
        let office = host(&["10.1.2.3/8"], &["10.0.0.0/8", "172.16.0.0/12"]);
        assert_eq!(chosen(&office).0, "192.168.0.0/24");
    }

    #[test]
    fn default_routes_do_not_exclude_subnets() {
        let vpn = host(
            &[],
            &["0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "::/0", "8000::/1"],
        );
        assert_eq!(chosen(&vpn).0, "10.0.2.0/24");
    }

    #[test]
    fn invalid_subnets_are_errors_with_advice() {
        let v4 = |net: &str| choose(Some(net.parse().unwrap()), Ipv6::Off, &host(&[], &[]));
        let v6 = |net: &str| choose(None, Ipv6::Subnet(net.parse().unwrap()), &host(&[], &[]));
        assert_eq!(
            v4("10.9.0.5/24").unwrap_err().to_string(),
            "10.9.0.5/24 is an address, not a subnet (try: --ipv4 10.9.0.0/24)"
        );
        for wrong in [
            "10.9.0.0/28",
            "127.0.0.0/8",
            "224.0.0.0/24",
            "0.0.0.0/8",
            "169.254.0.0/16",
        ] {
            assert!(v4(wrong).is_err(), "{wrong}");
        }
        for wrong in ["fd00:1::/48", "fe80::/64", "ff02::/64", "::/64", "fd00:1::5/64"] {
            assert!(v6(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            v4("10.9.0.0/27").unwrap().addresses.v4.guest.to_string(),
            "10.9.0.15"
        );
        assert!(v6("fd00:1::/64").is_ok());
    }
}
