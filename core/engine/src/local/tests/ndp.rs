use super::*;
use crate::address_plan::SubnetExtent;
use crate::config::LinkService;

fn solicit(from: &str, to: &str, target: &str) -> Vec<u8> {
    let IpAddr::V6(target) = ip(target) else {
        panic!("NDP is for IPv6");
    };
    icmp6(
        from,
        to,
        &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat(),
    )
}

#[test]
fn solicitations_for_all_addresses_but_the_guests_are_answered() {
    let mut net = net();
    for (target, flags) in [
        ("fe80::2", 0xe0),
        ("fd70:6f6e:746f::2", 0xe0),
        ("fd70:6f6e:746f::3", 0x60),
        ("fd70:6f6e:746f::77", 0x60),
        ("2001:db8::1", 0x60),
    ] {
        let answer = give(&mut net, &solicit("fd70:6f6e:746f::15", "ff02::1:ff00:2", target)).answer();
        assert_eq!(answer[..6], GUEST_MAC.0);
        let (source, destination, hop_limit, message) = open(&answer);
        assert_eq!(
            (source, destination, hop_limit),
            (ip(target), ip("fd70:6f6e:746f::15"), 255)
        );
        assert_eq!(message[..2], [136, 0]);
        assert_eq!(message[4..8], [flags, 0, 0, 0]);
        assert_eq!(
            IpAddr::from(<[u8; 16]>::try_from(&message[8..24]).unwrap()),
            ip(target)
        );
        assert_eq!(message[24..], [2, 1, 2, 0, 0, 0, 0, 1]);
    }
    give(
        &mut net,
        &solicit("fe80::77", "ff02::1:ff00:15", "fd70:6f6e:746f::15"),
    )
    .silence();
    give(&mut net, &solicit("fe80::77", "ff02::1:ff00:77", "fe80::77")).silence();
}

#[test]
fn duplicate_address_detection_is_answered_only_for_the_gateway() {
    let mut net = net();
    for free in ["fd70:6f6e:746f::15", "fd70:6f6e:746f::77", "fe80::1234"] {
        give(&mut net, &solicit("::", "ff02::1:ff00:15", free)).silence();
    }
    for taken in ["fe80::2", "fd70:6f6e:746f::2", "fd70:6f6e:746f::3"] {
        let answer = give(&mut net, &solicit("::", "ff02::1:ff00:2", taken)).answer();
        assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
        let (source, destination, _, message) = open(&answer);
        assert_eq!((source, destination), (ip(taken), ip("ff02::1")));
        assert_eq!(message[4] & 0x40, 0, "not solicited");
    }
}

#[test]
fn invalid_solicitations_are_malformed() {
    let mut net = net();
    let target = [0xfd, 0x70, 0x6f, 0x6e, 0x74, 0x6f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target].concat();
    let to = "ff02::1:ff00:2";
    give(
        &mut net,
        &packet("fe80::15", to, 254, protocol::ICMPV6, 2, &message),
    )
    .malformed();
    give(&mut net, &icmp6("fe80::15", to, &message[..23])).malformed();
    give(&mut net, &solicit("fe80::15", to, "ff02::1")).malformed();
    give(&mut net, &solicit("ff02::1", to, "fe80::2")).malformed();
    let mut code = message;
    code[1] = 1;
    give(&mut net, &icmp6("fe80::15", to, &code)).malformed();
}

#[test]
fn router_advertisement_has_all_options() {
    let mut net = net();
    let answer = give(
        &mut net,
        &icmp6("fe80::15", "ff02::2", &[133, 0, 0, 0, 0, 0, 0, 0]),
    )
    .answer();
    assert_eq!(answer[..6], GUEST_MAC.0);
    let (source, destination, hop_limit, message) = open(&answer);
    assert_eq!(
        (source, destination, hop_limit),
        (ip("fe80::2"), ip("fe80::15"), 255)
    );
    assert_eq!(message[..2], [134, 0]);
    assert_eq!(message[4..16], [64, 0x40, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    let prefix = b"\xfd\x70\x6f\x6e\x74\x6f\0\0\0\0\0\0\0\0\0";
    let options = [
        &b"\x01\x01\x02\0\0\0\0\x01"[..],
        b"\x05\x01\0\0\0\0\x05\xdc",
        b"\x03\x04\x40\xc0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0",
        prefix,
        b"\0",
        b"\x19\x03\0\0\xff\xff\xff\xff",
        prefix,
        b"\x03",
        b"\x1f\x05\0\0\xff\xff\xff\xff\x07example\x03org\0\x04corp\x07example\0\0\0\0\0\0",
    ];
    assert_eq!(message[16..], options.concat());
}

#[test]
fn solicitation_without_an_address_is_answered_by_multicast() {
    let answer = give(&mut net(), &icmp6("::", "ff02::2", &[133, 0, 0, 0, 0, 0, 0, 0])).answer();
    assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(open(&answer).1, ip("ff02::1"));
}

#[test]
fn unconfigured_options_are_not_advertised() {
    let mut net = net();
    net.config.resolvers.clear();
    net.config.search.clear();
    net.config.plan.v6.as_mut().unwrap().default_route = false;
    let answer = give(
        &mut net,
        &icmp6("fe80::15", "ff02::2", &[133, 0, 0, 0, 0, 0, 0, 0]),
    )
    .answer();
    let (.., message) = open(&answer);
    assert_eq!(message[6..8], [0, 0], "router lifetime");
    assert_eq!(message.len(), 16 + 8 + 8 + 32);
}

#[test]
fn addresses_are_managed_in_the_hosts_network_only() {
    let solicitation = icmp6("fe80::15", "ff02::2", &[133, 0, 0, 0, 0, 0, 0, 0]);
    let flags = |net: &mut Net| {
        let answer = give(net, &solicitation).answer();
        open(&answer).3[5]
    };
    let mut net = net();
    assert_eq!(flags(&mut net), 0x40);
    net.config.plan.extent = SubnetExtent::HostNetwork;
    assert_eq!(flags(&mut net), 0xc0);
    net.config.disabled = [LinkService::Dhcpv6].into_iter().collect();
    assert_eq!(flags(&mut net), 0x40);
}

#[test]
fn dns_is_not_advertised_if_that_is_disabled() {
    let mut net = net();
    net.config.disabled = [LinkService::DnsOption].into_iter().collect();
    let solicitation = icmp6("fe80::15", "ff02::2", &[133, 0, 0, 0, 0, 0, 0, 0]);
    let answer = give(&mut net, &solicitation).answer();
    assert_eq!(open(&answer).3.len(), 16 + 8 + 8 + 32);
}

#[test]
fn solicitations_without_ipv6_are_not_answered() {
    let mut net = net();
    net.config.plan.v6 = None;
    give(
        &mut net,
        &icmp6("fe80::15", "ff02::2", &[133, 0, 0, 0, 0, 0, 0, 0]),
    )
    .silence();
    give(&mut net, &solicit("fe80::15", "ff02::1:ff00:2", "fe80::2")).silence();
}

#[test]
fn advertisements_and_redirects_of_the_guest_are_dropped() {
    for kind in [134, 136, 137] {
        give(
            &mut net(),
            &icmp6("fe80::15", "ff02::1", &[kind, 0, 0, 0, 0, 0, 0, 0]),
        )
        .silence();
    }
}

#[test]
fn neighbour_and_router_advertisements_are_disabled_each_alone() {
    let neighbour = || solicit("fe80::15", "ff02::1:ff00:2", "fe80::2");
    let router = || icmp6("fe80::15", "ff02::2", &[133, 0, 0, 0, 0, 0, 0, 0]);
    let mut net = net();
    net.config.disabled = [LinkService::Ndp].into_iter().collect();
    give(&mut net, &neighbour()).silence();
    give(&mut net, &router()).answer();
    net.config.disabled = [LinkService::RouterAdvertisement].into_iter().collect();
    give(&mut net, &neighbour()).answer();
    give(&mut net, &router()).silence();
}
