//! Tests of IGMP and MLD packets, parsed and built.

use pontoon_wire::checksum::Sum;
use proptest::prelude::*;

use super::*;

/// Returns an IPv4 packet with an IGMP message of a host.
fn igmp(message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let sum = Sum::new().add(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let total = 24 + message.len() as u8;
    let mut packet = vec![0x46, 0xc0, 0, total, 0, 0, 0, 0, 1, 2, 0, 0];
    packet.extend([10, 0, 0, 7, 224, 0, 0, 22, 0x94, 4, 0, 0]);
    packet.append(&mut message);
    packet
}

#[test]
fn igmp_messages_are_parsed() {
    let group = [239, 1, 1, 1];
    let message = |kind: u8| igmp(&[[kind, 0, 0, 0], group].concat());
    for kind in [0x12, 0x16] {
        assert_eq!(
            message::parse(&message(kind)),
            Some(report("239.1.1.1", SourceChange::Any))
        );
    }
    assert_eq!(
        message::parse(&message(0x17)),
        Some(report("239.1.1.1", from(&[], true)))
    );
    // IGMPv3: two senders (ALLOW_NEW_SOURCES), and any sender (CHANGE_TO_EXCLUDE_MODE without senders).
    let mut records = vec![0x22, 0, 0, 0, 0, 0, 0, 2];
    records.extend([5, 1, 0, 2, 232, 1, 1, 1, 10, 0, 0, 1, 10, 0, 0, 2, 9, 9, 9, 9]);
    records.extend([4, 0, 0, 0, 239, 1, 1, 1]);
    let records_expected = vec![
        Record {
            group: address("232.1.1.1"),
            change: from(&["10.0.0.1", "10.0.0.2"], false),
        },
        Record {
            group: address("239.1.1.1"),
            change: SourceChange::Any,
        },
    ];
    let expected = Message::Reports {
        from: address("10.0.0.7"),
        records: records_expected,
    };
    assert_eq!(message::parse(&igmp(&records)), Some(expected));
    // A wrong checksum, a TTL other than 1, another protocol, and a truncated packet are refused.
    let good = message(0x16);
    for (at, byte) in [(27, 0xff), (8, 2), (9, 17)] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_eq!(message::parse(&bad), None, "{at}");
    }
    assert_eq!(message::parse(&good[..31]), None);
}

#[test]
fn igmp_messages_to_a_unicast_address_are_ignored() {
    for kind in [0x11, 0x12, 0x16, 0x17] {
        let mut good = igmp(&[kind, 0, 0, 0, 239, 1, 1, 1]);
        good[16..20].copy_from_slice(&[239, 1, 1, 1]);
        assert!(message::parse(&good).is_some(), "{kind:#x}");
        let mut bad = good;
        bad[16..20].copy_from_slice(&[10, 0, 0, 5]);
        assert_eq!(message::parse(&bad), None, "{kind:#x}");
    }
}

/// Returns an IPv6 packet with an MLD message.
fn mld(from: &str, to: &str, message: &[u8]) -> Vec<u8> {
    let (from, to) = (address(from), address(to));
    let mut message = message.to_vec();
    let sum = Sum::pseudo(from, to, 58, message.len()).add(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0, 0, 8 + message.len() as u8, 0, 1];
    for address in [from, to] {
        let IpAddr::V6(v6) = address else {
            panic!("{address}")
        };
        packet.extend(v6.octets());
    }
    packet.extend([58, 0, 5, 2, 0, 0, 1, 0]);
    packet.append(&mut message);
    packet
}

/// Returns an MLDv2 report that joins ff1e::1 for any sender.
fn mld_report() -> Vec<u8> {
    let mut message = vec![143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0];
    message.extend(Ipv6Addr::new(0xff1e, 0, 0, 0, 0, 0, 0, 1).octets());
    message
}

/// Returns an MLDv1 message of type `kind` for ff1e::1.
fn mld_1(kind: u8) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    message.extend(Ipv6Addr::new(0xff1e, 0, 0, 0, 0, 0, 0, 1).octets());
    message
}

#[test]
fn mld_messages_are_parsed() {
    let packet = mld("fe80::7", "ff02::16", &mld_report());
    assert_eq!(
        message::parse(&packet),
        Some(report("ff1e::1", SourceChange::Any))
    );
}

/// MLD requires link-local source addresses (RFC 2710 section 3, RFC 3810 sections 5.1.14 and 5.2.13).
#[test]
fn mld_messages_from_a_source_that_is_not_link_local_are_ignored() {
    for from in ["2001:db8::7", "fc00::7", "::1"] {
        for message in [mld_report(), mld_1(130), mld_1(131), mld_1(132)] {
            let packet = mld(from, "ff02::16", &message);
            assert_eq!(message::parse(&packet), None, "{from} {}", message[0]);
        }
    }
    for kind in [130, 131, 132] {
        assert!(
            message::parse(&mld("fe80::7", "ff1e::1", &mld_1(kind))).is_some(),
            "{kind}"
        );
        assert_eq!(
            message::parse(&mld("::", "ff1e::1", &mld_1(kind))),
            None,
            "{kind}"
        );
    }
}

/// The host reports again when it has a link-local address (RFC 3810 section 5.2.13).
#[test]
fn mld_reports_from_the_unspecified_address_are_ignored() {
    let packet = mld("::", "ff02::16", &mld_report());
    assert_eq!(message::parse(&packet), None);
}

#[test]
fn built_queries_parse_back() {
    for (own, query) in [
        ("10.0.0.1", Query::general()),
        ("10.0.0.1", Query::group(address("239.1.1.1"))),
        (
            "10.0.0.1",
            Query::sources(address("232.1.1.1"), vec![address("10.0.0.9")]),
        ),
        ("fe80::1", Query::general()),
        ("fe80::1", Query::group(address("ff1e::1"))),
        (
            "fe80::1",
            Query::sources(address("ff3e::1"), vec![address("2001:db8::9")]),
        ),
    ] {
        let (packet, to) = query.packet(address(own)).unwrap();
        let expected = Message::Query {
            from: address(own),
            group: query.group,
            sources: query.sources.clone(),
        };
        assert_eq!(message::parse(&packet), Some(expected));
        let all = if own.contains(':') { "ff02::1" } else { "224.0.0.1" };
        assert_eq!(to, query.group.unwrap_or(address(all)));
        // Another library accepts the packet, too.
        let sliced = etherparse::SlicedPacket::from_ip(&packet).unwrap();
        assert!(sliced.net.is_some());
    }
    assert_eq!(Query::group(address("ff1e::1")).packet(address("10.0.0.1")), None);
}

#[test]
fn query_to_another_destination_than_its_group_is_dropped() {
    for (own, query, to) in [
        ("10.0.0.1", Query::group(address("239.1.1.1")), "224.0.0.1"),
        ("10.0.0.1", Query::general(), "239.1.1.1"),
        ("fe80::1", Query::group(address("ff1e::1")), "ff02::1"),
        ("fe80::1", Query::general(), "ff1e::1"),
    ] {
        let (mut packet, _) = query.packet(address(own)).unwrap();
        match address(to) {
            IpAddr::V4(to) => packet[16..20].copy_from_slice(&to.octets()),
            IpAddr::V6(to) => {
                packet[24..40].copy_from_slice(&to.octets());
                // The checksum covers the destination: the old one is exchanged for the new.
                let message = packet.len() - 28;
                packet[message + 2..message + 4].fill(0);
                let sum =
                    pontoon_wire::checksum::Sum::pseudo(address(own), to.into(), 58, packet.len() - message);
                let sum = sum.add(&packet[message..]).finish().to_be_bytes();
                packet[message + 2..message + 4].copy_from_slice(&sum);
            }
        }
        assert_eq!(message::parse(&packet), None, "{own} to {to}");
    }
}

proptest! {
    #[test]
    fn parse_never_panics(
        begin in prop::sample::select(vec![
            igmp(&[0x22, 0, 0, 0, 0, 0, 0, 9, 5, 0, 0, 1, 239, 1, 1, 1]),
            Query::general().packet(address("fe80::1")).unwrap().0,
        ]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut packet = begin;
        for (at, byte) in changes {
            let at = at.index(packet.len());
            packet[at] = byte;
        }
        packet.truncate(cut.index(packet.len() + 1));
        let _ = message::parse(&packet);
    }
}
