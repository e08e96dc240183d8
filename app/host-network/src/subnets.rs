//! Subnets of a private address plan: the defaults, or the next that the host does not use.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pontoon_process::error::Error;

use crate::network::HostNetwork;

/// A subnet of a private plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subnet<T> {
    /// The subnet.
    pub(crate) net: T,
    /// A network of the host overlaps the default subnet, so that the guest uses this one.
    pub(crate) moved: bool,
}

/// Returns the guest's IPv4 subnet: `given`, or the first that the host does not use.
///
/// # Errors
/// `given` cannot be the guest's subnet, or none is free.
pub(crate) fn choose_v4(given: Option<Ipv4Net>, host: &HostNetwork) -> Result<Subnet<Ipv4Net>, Error> {
    if let Some(given) = given {
        let net = check_v4(given)?;
        return Ok(Subnet { net, moved: false });
    }
    let mut free = candidates_v4().enumerate();
    let free = free.find(|(_, subnet)| !host.uses(IpNet::V4(*subnet)));
    let (nth, net) = free.ok_or_else(|| {
        Error::new("no IPv4 subnet for the guest: the host uses all private subnets").advise("--ipv4 CIDR")
    })?;
    Ok(Subnet { net, moved: nth > 0 })
}

/// Returns the guest's IPv6 subnet, a /64: `given`, or the first that the host does not use.
///
/// # Errors
/// `given` cannot be the guest's subnet, or none is free.
pub(crate) fn choose_v6(given: Option<Ipv6Net>, host: &HostNetwork) -> Result<Subnet<Ipv6Net>, Error> {
    if let Some(given) = given {
        let net = check_v6(given)?;
        return Ok(Subnet { net, moved: false });
    }
    let mut free = candidates_v6().enumerate();
    let free = free.find(|(_, subnet)| !host.uses(IpNet::V6(*subnet)));
    let (nth, net) = free.ok_or_else(|| {
        Error::new("no IPv6 subnet for the guest: the host uses all candidate subnets")
            .advise("--ipv6 CIDR, or --no-ipv6")
    })?;
    Ok(Subnet { net, moved: nth > 0 })
}

fn candidates_v4() -> impl Iterator<Item = Ipv4Net> {
    let ten = (2..=255).map(|third| [10, 0, third, 0]);
    let twelve = (0..=255).map(|third| [172, 31, third, 0]);
    let sixteen = (0..=255).map(|third| [192, 168, third, 0]);
    let all = ten.chain(twelve).chain(sixteen);
    all.map(|octets| Ipv4Net::new_assert(octets.into(), 24))
}

fn candidates_v6() -> impl Iterator<Item = Ipv6Net> {
    // "pont" in ASCII, behind fd.
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
    // ::/64 holds the loopback, the mapped and the unspecified addresses.
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
        (
            choose_v4(None, host).unwrap().net.to_string(),
            choose_v6(None, host).unwrap().net.to_string(),
        )
    }

    #[test]
    fn default_subnets_are_used_if_free() {
        let host = host(&["192.0.2.2/24", "fd00::2/64"], &["0.0.0.0/0"]);
        let (v4, v6) = (choose_v4(None, &host).unwrap(), choose_v6(None, &host).unwrap());
        assert!(!v4.moved && !v6.moved);
        assert_eq!(
            chosen(&host),
            ("10.0.2.0/24".into(), "fd70:6f6e:746f::/64".into())
        );
    }

    #[test]
    fn subnets_of_the_host_are_skipped() {
        let nested = host(&["10.0.2.15/24", "fd70:6f6e:746f::15/64"], &["0.0.0.0/0"]);
        assert_eq!(
            chosen(&nested),
            ("10.0.3.0/24".into(), "fd70:6f6e:746f:1::/64".into())
        );
        assert!(choose_v4(None, &nested).unwrap().moved && choose_v6(None, &nested).unwrap().moved);

        let routed = host(&[], &["10.0.2.128/25", "fd70:6f6e:746f::/48"]);
        assert!(choose_v6(None, &routed).is_err());
        assert_eq!(choose_v4(None, &routed).unwrap().net.to_string(), "10.0.3.0/24");
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
        let v4 = |net: &str| choose_v4(Some(net.parse().unwrap()), &host(&[], &[]));
        let v6 = |net: &str| choose_v6(Some(net.parse().unwrap()), &host(&[], &[]));
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
        assert!(v4("10.9.0.0/27").is_ok() && v6("fd00:1::/64").is_ok());
    }
}
