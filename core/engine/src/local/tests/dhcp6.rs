use super::*;
use crate::config::LinkService;

const CLIENT: &[u8] = b"\0\x01\0\x03abc";
const SERVER: &[u8] = b"\0\x02\0\x0a\0\x03\0\x01\x02\0\0\0\0\x01";
const OTHER_SERVER: &[u8] = b"\0\x02\0\x04none";
const IA: &[u8] = b"\0\x03\0\x0c\0\0\0\x09\0\0\0\0\0\0\0\0";
const DNS: &[u8] = b"\0\x17\0\x10\xfd\x70\x6f\x6e\x74\x6f\0\0\0\0\0\0\0\0\0\x03";
const SEARCH: &[u8] = b"\0\x18\0\x1b\x07example\x03org\0\x04corp\x07example\0";
/// IA_NA option with the guest's address and infinite lifetimes.
const LEASE: &[u8] = b"\0\x03\0\x28\0\0\0\x09\xff\xff\xff\xff\xff\xff\xff\xff\
    \0\x05\0\x18\xfd\x70\x6f\x6e\x74\x6f\0\0\0\0\0\0\0\0\0\x15\xff\xff\xff\xff\xff\xff\xff\xff";
const RAPID: &[u8] = b"\0\x0e\0\0";

fn message(kind: u8, options: &[&[u8]]) -> Vec<u8> {
    let content = [&[&[kind, 1, 2, 3][..]], options].concat().concat();
    udp(("fe80::15", 546), ("ff02::1:2", 547), &content)
}

pub(super) fn information_request() -> Vec<u8> {
    message(11, &[])
}

#[track_caller]
fn answer(kind: u8, options: &[&[u8]], expected: u8, content: &[&[u8]]) {
    let frame = give(&mut net(), &message(kind, options)).answer();
    let (source, destination, _, datagram) = open(&frame);
    assert_eq!((source, destination), (ip("fe80::2"), ip("fe80::15")));
    assert_eq!(datagram[..4], [0x02, 0x23, 0x02, 0x22]);
    let whole = [&[&[expected, 1, 2, 3][..]], content, &[DNS, SEARCH]]
        .concat()
        .concat();
    assert_eq!(datagram[8..], whole);
}

#[track_caller]
fn silence(kind: u8, options: &[&[u8]]) {
    give(&mut net(), &message(kind, options)).silence();
}

#[test]
fn information_request_is_answered_with_options() {
    answer(11, &[], 7, &[SERVER]);
    answer(11, &[CLIENT], 7, &[CLIENT, SERVER]);
    answer(11, &[CLIENT, SERVER], 7, &[CLIENT, SERVER]);
    silence(11, &[OTHER_SERVER]);
    silence(11, &[CLIENT, IA]);
}

#[test]
fn solicit_is_answered_with_the_guests_address() {
    answer(1, &[CLIENT, IA], 2, &[CLIENT, SERVER, LEASE]);
    answer(1, &[CLIENT, RAPID, IA], 7, &[CLIENT, SERVER, RAPID, LEASE]);
    answer(3, &[CLIENT, SERVER, IA], 7, &[CLIENT, SERVER, LEASE]);
    answer(5, &[CLIENT, SERVER, IA], 7, &[CLIENT, SERVER, LEASE]);
    answer(6, &[CLIENT, IA], 7, &[CLIENT, SERVER, LEASE]);
    answer(
        8,
        &[CLIENT, SERVER, IA],
        7,
        &[CLIENT, SERVER, b"\0\x0d\0\x02\0\0"],
    );
    answer(
        9,
        &[CLIENT, SERVER, IA],
        7,
        &[CLIENT, SERVER, b"\0\x0d\0\x02\0\0"],
    );
}

#[test]
fn messages_that_rfc_8415_discards_are_dropped() {
    silence(1, &[IA]);
    silence(1, &[CLIENT, SERVER, IA]);
    silence(3, &[CLIENT, IA]);
    silence(3, &[CLIENT, OTHER_SERVER, IA]);
    silence(5, &[CLIENT, IA]);
    silence(6, &[CLIENT, SERVER, IA]);
    silence(2, &[CLIENT, SERVER, IA]);
    silence(7, &[CLIENT, SERVER, IA]);
    silence(12, &[CLIENT]);
    // A message with a truncated client identifier is treated as one without.
    silence(1, &[&CLIENT[..5]]);
}

#[test]
fn confirm_of_an_address_on_another_link_is_answered_not_on_link() {
    let with = |address: &[u8; 16]| {
        let mut ia = b"\0\x03\0\x28\0\0\0\x09\0\0\0\0\0\0\0\0\0\x05\0\x18".to_vec();
        ia.extend(address);
        ia.extend([0; 8]);
        ia
    };
    let here = with(b"\xfd\x70\x6f\x6e\x74\x6f\0\0\0\0\0\0\0\0\0\x77");
    let there = with(b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x77");
    answer(4, &[CLIENT, &here], 7, &[CLIENT, SERVER, b"\0\x0d\0\x02\0\0"]);
    answer(4, &[CLIENT, &there], 7, &[CLIENT, SERVER, b"\0\x0d\0\x02\0\x04"]);
    silence(4, &[CLIENT, IA]);
}

#[test]
fn invalid_messages_are_malformed() {
    give(
        &mut net(),
        &udp(("fe80::15", 546), ("ff02::1:2", 547), &[1, 0, 0]),
    )
    .malformed();
}

#[test]
fn unconfigured_options_are_omitted() {
    let mut net = net();
    net.config.resolvers.clear();
    net.config.search.clear();
    let frame = give(&mut net, &message(11, &[])).answer();
    assert_eq!(open(&frame).3[8..], [&[7, 1, 2, 3], SERVER].concat());
    net.config.plan.v6 = None;
    give(&mut net, &message(11, &[])).silence();
}

#[test]
fn dns_is_not_announced_if_that_is_disabled() {
    let mut net = net();
    net.config.disabled = [LinkService::DnsOption].into_iter().collect();
    let frame = give(&mut net, &message(11, &[])).answer();
    assert_eq!(open(&frame).3[8..], [&[7, 1, 2, 3], SERVER].concat());
}

/// Tests the option Client FQDN (RFC 4704 section 4): flags, then the name as labels.
#[test]
fn name_with_domain_is_returned_as_labels() {
    let fqdn = b"\0\x27\0\x13\0\x03box\x04corp\x07example\0";
    for name in ["box.corp.example", "box.corp.example."] {
        let mut net = net();
        net.config.fqdn = Some(name.to_owned());
        for (kind, expected) in [(11, 7), (1, 2)] {
            let frame = give(&mut net, &message(kind, &[CLIENT])).answer();
            let reply = &open(&frame).3[8..];
            assert_eq!(reply[0], expected);
            assert!(reply.ends_with(fqdn), "{reply:?}");
        }
    }
}

#[test]
fn disabled_dhcpv6_is_silent_and_leaves_dhcp_and_router_advertisements() {
    let mut net = net();
    net.config.disabled = [LinkService::Dhcpv6].into_iter().collect();
    give(&mut net, &message(11, &[])).silence();
    give(&mut net, &message(1, &[CLIENT, IA])).silence();
    let discover = super::dhcp4::with_options(&[53, 1, 1, 255]);
    give(
        &mut net,
        &udp(("0.0.0.0", 68), ("255.255.255.255", 67), &discover),
    )
    .answer();
    give(
        &mut net,
        &icmp6("fe80::15", "ff02::2", &[133, 0, 0, 0, 0, 0, 0, 0]),
    )
    .answer();
}
