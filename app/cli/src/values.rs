//! Parsers of the values of command line options.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ipnet::IpNet;
use pontoon_control::reply::Level;
use pontoon_engine::address_plan::PlannedRoute;
use pontoon_engine::config::{LinkService, UdpFilter};
use pontoon_engine::policy::is_metadata;
use pontoon_supervisor::options::{AddressSource, Loopback, Target, VhostNet};
use pontoon_supervisor::publish::spec::interface_name;
use pontoon_wire::Mac;
use pontoon_worker::{MACHINE_PROTOCOLS, MachineProtocol, Pacing};

use crate::args::{OutboundSource, Resolver};

/// Values of `--io`.
pub(crate) const PACINGS: &[(&str, Pacing)] = &[
    ("event", Pacing::Event),
    ("hybrid", Pacing::Hybrid),
    ("poll", Pacing::Poll),
];

/// Values of `--vhost-net`.
pub(crate) const VHOST_NETS: &[(&str, VhostNet)] = &[
    ("auto", VhostNet::Auto),
    ("on", VhostNet::On),
    ("off", VhostNet::Off),
];

/// Values of `--disable`.
pub(crate) const LINK_SERVICES: &[(&str, LinkService)] = &[
    ("dhcp", LinkService::Dhcp),
    ("dhcpv6", LinkService::Dhcpv6),
    ("ndp", LinkService::Ndp),
    ("ra", LinkService::RouterAdvertisement),
    ("tcp", LinkService::Tcp),
    ("udp", LinkService::Udp),
    ("icmp", LinkService::Icmp),
    ("dns-option", LinkService::DnsOption),
];

/// Values of `--udp-filter`.
pub(crate) const UDP_FILTERS: &[(&str, UdpFilter)] = &[
    ("endpoint", UdpFilter::Endpoint),
    ("address", UdpFilter::Address),
    ("address-port", UdpFilter::AddressPort),
];

/// Returns a parser of the names in `table`, which the parser's errors list.
pub(crate) fn one_of<T>(table: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let names = PossibleValuesParser::new(table.iter().map(|(name, _)| *name));
    names.try_map(move |given| {
        let entry = table.iter().find(|(name, _)| *name == given);
        entry.map(|(_, value)| *value).ok_or("not in the table")
    })
}

/// Returns a parser of the names in [`MACHINE_PROTOCOLS`], which the parser's errors list.
pub(crate) fn machine_protocol() -> impl TypedValueParser<Value = MachineProtocol> {
    let names = PossibleValuesParser::new(MACHINE_PROTOCOLS.map(|protocol| protocol.name));
    names.try_map(|given| {
        let mut protocols = MACHINE_PROTOCOLS.into_iter();
        protocols
            .find(|protocol| protocol.name == given)
            .ok_or("not in the table")
    })
}

pub(crate) fn loopback(text: &str) -> Result<Loopback, String> {
    match text {
        "gateway" => Ok(Loopback::Gateway),
        address => mapped_address(address).map(Loopback::Address),
    }
}

/// An address that stands for the host: one to which a guest can send packets through its gateway.
pub(crate) fn mapped_address(text: &str) -> Result<IpAddr, String> {
    let address = unicast(text)?;
    // fe80::/10 is on the guest's link. 169.254.0.0/16 is, too, but guests with a default route send to it by the gateway, and
    // no network of the host conflicts with it (RFC 3927 section 2.1: 169.254.1.0 to 169.254.254.255).
    let unreachable = match address {
        IpAddr::V4(v4) => v4.is_link_local() && matches!(v4.octets()[2], 0 | 255),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if unreachable {
        return Err("an address of this kind cannot be reached by the guest".into());
    }
    if is_metadata(address) {
        return Err("the address of a cloud's metadata service".into());
    }
    Ok(address)
}

/// An address that a host has on a network: neither loopback, unspecified, multicast, broadcast nor IPv4-mapped.
pub(crate) fn unicast(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| "not an address")?;
    let is_unicast = match address {
        IpAddr::V4(v4) => !v4.is_loopback() && v4.octets()[0] != 0 && v4.octets()[0] < 224,
        IpAddr::V6(v6) => {
            !v6.is_loopback() && !v6.is_unspecified() && !v6.is_multicast() && v6.to_ipv4_mapped().is_none()
        }
    };
    if !is_unicast {
        return Err("no host on a network has such an address".into());
    }
    Ok(address)
}

/// The guest's address and prefix length.
pub(crate) fn guest_address(text: &str) -> Result<IpNet, String> {
    let net: IpNet = text
        .parse()
        .map_err(|_| "not an address with a prefix length, such as 192.0.2.5/24")?;
    unicast(&net.addr().to_string())?;
    if net.prefix_len() == 0 {
        return Err("a subnet of all addresses".into());
    }
    Ok(net)
}

pub(crate) fn route(text: &str) -> Result<PlannedRoute, String> {
    let (destination, gateway) = match text.split_once(',') {
        Some((destination, gateway)) => (destination, Some(unicast(gateway)?)),
        None => (text, None),
    };
    let destination: IpNet = destination.parse().map_err(|_| "not CIDR[,GATEWAY]")?;
    if destination != destination.trunc() {
        return Err(format!("not a network (it would be {})", destination.trunc()));
    }
    if destination.prefix_len() == 0 {
        return Err("the default route, which --gateway sets".into());
    }
    if unicast(&destination.addr().to_string()).is_err() {
        return Err("no hosts on a network have such addresses".into());
    }
    if gateway.is_some_and(|gateway| gateway.is_ipv4() != destination.addr().is_ipv4()) {
        return Err("network and gateway are of different families".into());
    }
    Ok(PlannedRoute { destination, gateway })
}

pub(crate) fn address_source(text: &str) -> Result<AddressSource, String> {
    match text.split_once(':') {
        None if text == "private" => Ok(AddressSource::Private),
        None if text == "host" => Ok(AddressSource::Host(None)),
        None if text == "auto" => Ok(AddressSource::Auto(None)),
        Some(("host", name)) => ifname(name).map(|name| AddressSource::Host(Some(name))),
        Some(("auto", name)) => ifname(name).map(|name| AddressSource::Auto(Some(name))),
        _ => Err("not 'private', 'host', 'auto', 'host:IFACE' or 'auto:IFACE'".into()),
    }
}

pub(crate) fn resolver(text: &str) -> Result<Resolver, String> {
    if text == "none" {
        return Ok(Resolver::None);
    }
    let with_port = text.parse::<SocketAddr>();
    let at = with_port.or_else(|_| text.parse::<IpAddr>().map(|address| (address, 53).into()));
    at.map(Resolver::At)
        .map_err(|_| "neither an address nor 'none'".into())
}

/// A domain name (RFC 1035 section 2.3.4), with or without a dot at its end.
pub(crate) fn domain(text: &str) -> Result<String, String> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let labels = text.strip_suffix('.').unwrap_or(text);
    let is_name = labels.len() <= 253 && labels.split('.').all(|label| (1..=63).contains(&label.len()));
    if !is_name || !text.chars().all(fits) {
        return Err("not a domain name".into());
    }
    Ok(text.to_owned())
}

/// A domain of a resolver's search list, or the root `.`, which stands for an empty list (resolv.conf(5)).
pub(crate) fn search_domain(text: &str) -> Result<String, String> {
    match text {
        "." => Ok(text.to_owned()),
        name => domain(name),
    }
}

pub(crate) fn target(text: &str) -> Result<Target, String> {
    match text.parse() {
        Ok(pid @ 1..) => Ok(Target::Pid(pid)),
        Ok(0) => Err("not a process id".into()),
        _ if text.is_empty() => Err("neither a process id nor a path".into()),
        Err(_) => Ok(Target::Path(text.into())),
    }
}

/// Parses the name of an interface other than the loopback interface.
pub(crate) fn ifname(text: &str) -> Result<String, String> {
    match text {
        "lo" => Err("the name of the loopback interface".into()),
        _ => interface_name(text),
    }
}

pub(crate) fn mac(text: &str) -> Result<Mac, String> {
    let mut octets = [0; 6];
    let mut parts = text.split([':', '-']);
    for octet in &mut octets {
        let part = parts
            .next()
            .filter(|part| part.len() == 2)
            .ok_or("not an Ethernet address")?;
        *octet = u8::from_str_radix(part, 16).map_err(|_| "not an Ethernet address")?;
    }
    if parts.next().is_some() {
        return Err("not an Ethernet address".into());
    }
    if octets[0] & 1 == 1 || octets == [0; 6] {
        return Err("not a unicast address".into());
    }
    Ok(Mac(octets))
}

pub(crate) fn hostname(text: &str) -> Result<String, String> {
    // RFC 1035 section 2.3.4; HOST_NAME_MAX is 64.
    if text.len() > 63 {
        return Err("longer than 63 characters".into());
    }
    domain(text).map_err(|_| "not a host name".into())
}

pub(crate) fn outbound(text: &str) -> Result<OutboundSource, String> {
    match text.parse::<IpAddr>() {
        Ok(_) => unicast(text).map(OutboundSource::Address),
        Err(_) => ifname(text)
            .map(OutboundSource::Interface)
            .map_err(|_| "neither an address nor an interface".into()),
    }
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| "not a time, such as 10s or 500ms")?;
    let milliseconds = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        _ => return Err("not a time, such as 10s or 500ms".into()),
    };
    match number.checked_mul(milliseconds) {
        Some(product @ 1..) => Ok(Duration::from_millis(product)),
        _ => Err("out of range".into()),
    }
}

/// Parses the value of `--decision-deadline`, which is at most a minute: a guest's kernel gives up a connect after two.
pub(crate) fn decision_deadline(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        deadline if deadline > Duration::from_secs(60) => Err("at most 60s".into()),
        deadline => Ok(deadline),
    }
}

/// Parses a duration that may be zero, in units from microseconds up.
pub(crate) fn delay(text: &str) -> Result<Duration, String> {
    let malformed = || "not a time, such as 100us, 1ms or 0".to_owned();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| malformed())?;
    let microseconds = match (&text[digits.len()..], number) {
        ("us", _) | ("", 0) => 1,
        ("ms", _) => 1000,
        _ => return Err(malformed()),
    };
    match number.checked_mul(microseconds) {
        Some(product @ ..=MOST_DELAY) => Ok(Duration::from_micros(product)),
        _ => Err("longer than 1s".to_owned()),
    }
}

/// Parses the id of a flow.
pub(crate) fn flow_id(text: &str) -> Result<String, String> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match is_hex && (1..=16).contains(&text.len()) {
        true => Ok(text.to_owned()),
        false => Err("not the id of a flow, as 'pontoon ctl flows' shows it".into()),
    }
}

pub(crate) fn level(text: &str) -> Result<Level, String> {
    let mut all = Level::ALL.into_iter();
    all.find(|level| level.to_string() == text)
        .ok_or_else(|| "not one of error, warn, info, debug and trace".into())
}

/// Parses a number of bits per second, with a suffix for powers of 1000.
pub(crate) fn bandwidth(text: &str) -> Result<NonZeroU64, String> {
    let malformed = || "not a bandwidth, such as 500k, 20M or 1G".to_owned();
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1_000),
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        Some(b'G') => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    let number: u64 = digits.parse().map_err(|_| malformed())?;
    match number.checked_mul(factor).and_then(NonZeroU64::new) {
        Some(rate) if rate.get() < LEAST_BANDWIDTH => Err("less than 64k".to_owned()),
        Some(rate) => Ok(rate),
        None => Err("out of range".to_owned()),
    }
}

/// Smallest value of `--max-bandwidth` in bits per second. With less, a frame of the maximum size would delay the next one
/// by more than 8 s.
const LEAST_BANDWIDTH: u64 = 64_000;

/// Largest value of `--max-delay` in microseconds.
const MOST_DELAY: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_ones_that_a_guest_can_reach() {
        assert_eq!(loopback("gateway"), Ok(Loopback::Gateway));
        assert!(loopback("192.0.2.1").is_ok() && loopback("2001:db8::1").is_ok());
        for wrong in [
            "127.0.0.1",
            "0.0.0.0",
            "169.254.0.2",
            "169.254.169.254",
            "224.0.0.1",
            "240.0.0.1",
            "::",
            "::1",
            "ff02::1",
            "fe80::1",
            "::ffff:10.0.0.1",
            "name",
        ] {
            assert!(loopback(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn resolvers() {
        assert_eq!(resolver("none"), Ok(Resolver::None));
        assert_eq!(
            resolver("192.0.2.1"),
            Ok(Resolver::At("192.0.2.1:53".parse().unwrap()))
        );
        assert_eq!(resolver("::1"), Ok(Resolver::At("[::1]:53".parse().unwrap())));
        assert_eq!(
            resolver("127.0.0.1:5353"),
            Ok(Resolver::At("127.0.0.1:5353".parse().unwrap()))
        );
        assert!(resolver("dns.example").is_err());
    }

    #[test]
    fn bandwidths_are_parsed() {
        let parse = |text| bandwidth(text).map(NonZeroU64::get);
        assert_eq!(parse("64000"), Ok(64_000));
        assert_eq!(parse("500k"), Ok(500_000));
        assert_eq!(parse("20M"), Ok(20_000_000));
        assert_eq!(parse("1G"), Ok(1_000_000_000));
        for wrong in ["", "M", "1T", "1m", "63k", "0", "-1M", "1.5M", "99999999999999G"] {
            parse(wrong).unwrap_err();
        }
    }

    #[test]
    fn durations_are_parsed() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in [
            "",
            "s",
            "0",
            "1h",
            "-1",
            "1.5s",
            "99999999999999999999",
            "18446744073709551615m",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn decision_deadlines_are_at_most_a_minute() {
        assert_eq!(decision_deadline("60s"), Ok(Duration::from_secs(60)));
        for wrong in ["61s", "2m", "0", "1h"] {
            assert!(decision_deadline(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn delays_are_parsed() {
        assert_eq!(delay("100us"), Ok(Duration::from_micros(100)));
        assert_eq!(delay("2ms"), Ok(Duration::from_millis(2)));
        assert_eq!(delay("0"), Ok(Duration::ZERO));
        for wrong in ["", "100", "us", "-1us", "1s", "1001ms", "99999999999999999999us"] {
            assert!(delay(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_and_addresses_of_interfaces() {
        assert!(ifname("eth0").is_ok() && ifname("fifteen-bytes-a").is_ok());
        for wrong in ["", ".", "lo", "a/b", "a b", "tap%d", "sixteen-bytes-ab", "é"] {
            assert!(ifname(wrong).is_err(), "{wrong}");
        }
        assert_eq!(mac("02:00:00:00:00:0F"), Ok(Mac([2, 0, 0, 0, 0, 15])));
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:0",
            "01:00:00:00:00:01",
            "00:00:00:00:00:00",
        ] {
            assert!(mac(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn targets_and_outbounds() {
        assert_eq!(target("17"), Ok(Target::Pid(17)));
        assert_eq!(target("/run/netns/x"), Ok(Target::Path("/run/netns/x".into())));
        assert!(target("0").is_err() && target("").is_err());
        assert!(matches!(outbound("192.0.2.1"), Ok(OutboundSource::Address(_))));
        assert!(matches!(outbound("eth0"), Ok(OutboundSource::Interface(_))));
        assert!(outbound("a b").is_err());
        for wrong in [
            "0.0.0.0",
            "::",
            "127.0.0.1",
            "::1",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
        ] {
            assert!(outbound(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn host_names_and_domains() {
        assert!(hostname("box-1").is_ok() && domain("corp.example").is_ok());
        let label = "x".repeat(63);
        let name = [label.as_str(), &label, &label, &label[2..]].join(".");
        assert_eq!(name.len(), 253);
        for right in ["a", "a_b.-c", "corp.example.", &label, &name, &format!("{name}.")] {
            assert!(domain(right).is_ok() && search_domain(right).is_ok(), "{right}");
        }
        assert!(hostname(&label).is_ok() && hostname(&name).is_err());
        for wrong in [
            "",
            "..",
            ".a",
            "a..b",
            "a..",
            "a b",
            "a\tb",
            "a\u{7f}",
            "ä",
            "a\nnameserver 1.2.3.4",
            &format!("{label}x.b"),
            &format!("{name}x"),
        ] {
            assert!(domain(wrong).is_err(), "{wrong:?}");
            assert!(search_domain(wrong).is_err(), "{wrong:?}");
            assert!(hostname(wrong).is_err(), "{wrong:?}");
        }
        // The root stands for an empty search list. A host cannot have that name.
        assert!(search_domain(".").is_ok() && domain(".").is_err() && hostname(".").is_err());
    }

    #[test]
    fn addresses_of_a_plan() {
        for wrong in [
            "x",
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "ff02::1",
            "::ffff:10.0.2.5",
        ] {
            assert!(
                unicast(wrong).is_err() && mapped_address(wrong).is_err(),
                "{wrong}"
            );
            assert!(guest_address(&format!("{wrong}/24")).is_err(), "{wrong}");
            assert!(route(&format!("192.0.2.0/24,{wrong}")).is_err(), "{wrong}");
        }
        for wrong in [
            "169.254.0.1",
            "169.254.255.1",
            "169.254.169.254",
            "fe80::1",
            "fd00:ec2::254",
        ] {
            assert!(
                unicast(wrong).is_ok() && mapped_address(wrong).is_err(),
                "{wrong}"
            );
        }
        for right in [
            "10.0.0.1/1",
            "10.0.0.1/30",
            "10.0.0.1/31",
            "10.0.0.1/32",
            "fd00::1/1",
            "fd00::1/127",
            "fd00::1/128",
        ] {
            assert!(guest_address(right).is_ok(), "{right}");
        }
        for wrong in [
            "10.0.0.1",
            "10.0.0.1/0",
            "10.0.0.1/33",
            "fd00::1/0",
            "fd00::1/129",
        ] {
            assert!(guest_address(wrong).is_err(), "{wrong}");
        }
        for right in [
            "192.0.2.0/24",
            "192.0.2.1/32,10.0.2.7",
            "169.254.0.0/16",
            "2001:db8::/32,fe80::7",
        ] {
            assert!(route(right).is_ok(), "{right}");
        }
        for wrong in [
            "",
            ",",
            "192.0.2.0/24,",
            "192.0.2.0",
            "192.0.2.1/24",
            "0.0.0.0/0",
            "::/0,fe80::1",
            "127.0.0.0/8",
            "224.0.0.0/4",
            "ff00::/8",
            "192.0.2.0/24,fd00::1",
        ] {
            assert!(route(wrong).is_err(), "{wrong}");
        }
    }
}
