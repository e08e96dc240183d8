//! Tests of IGMP and MLD packets, parsed and built.

use pontoon_wire::checksum::Sum;
use proptest::prelude::*;

use super::*;

/// Returns an IPv4 packet with an IGMP message of a host.
fn igmp(message: &[u8]) -> Vec<u8> {
    igmp_with([10, 0, 0, 7], [224, 0, 0, 22], &[0x94, 4, 0, 0], message)
}

/// Returns an IPv4 packet with IP options and an IGMP message.
fn igmp_with(from: [u8; 4], to: [u8; 4], options: &[u8], message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let sum = Sum::new().add(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let header_len = 20 + options.len() as u8;
    let total = header_len + message.len() as u8;
    let mut packet = vec![0x40 | (header_len / 4), 0xc0, 0, total, 0, 0, 0, 0, 1, 2, 0, 0];
    packet.extend([&from[..], &to, options].concat());
    set_header_checksum(&mut packet);
    packet.append(&mut message);
    packet
}

/// Sets the checksum of an IPv4 header.
fn set_header_checksum(packet: &mut [u8]) {
    let header_len = usize::from(packet[0] & 0xf) * 4;
    packet[10..12].fill(0);
    let sum = Sum::new().add(&packet[..header_len]).finish();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
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
        set_header_checksum(&mut bad);
        assert_eq!(message::parse(&bad), None, "{at}");
    }
    assert_eq!(message::parse(&good[..31]), None);
}

#[test]
fn igmp_messages_to_a_unicast_address_are_ignored() {
    for kind in [0x11, 0x12, 0x16, 0x17] {
        let to = |to| igmp_with([10, 0, 0, 7], to, &[], &[kind, 10, 0, 0, 239, 1, 1, 1]);
        assert!(message::parse(&to([239, 1, 1, 1])).is_some(), "{kind:#x}");
        assert_eq!(message::parse(&to([10, 0, 0, 5])), None, "{kind:#x}");
    }
}

/// Returns an IPv6 packet with an MLD message.
fn mld(from: &str, to: &str, message: &[u8]) -> Vec<u8> {
    mld_with(from, to, &[5, 2, 0, 0, 1, 0], message)
}

/// Returns an IPv6 packet with hop-by-hop options and an MLD message.
fn mld_with(from: &str, to: &str, options: &[u8], message: &[u8]) -> Vec<u8> {
    let (from, to) = (address(from), address(to));
    let mut message = message.to_vec();
    let sum = Sum::pseudo(from, to, 58, message.len()).add(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let header_len = 2 + options.len();
    let mut packet = vec![0x60, 0, 0, 0, 0, (header_len + message.len()) as u8, 0, 1];
    for address in [from, to] {
        let IpAddr::V6(v6) = address else {
            panic!("{address}")
        };
        packet.extend(v6.octets());
    }
    packet.extend([58, (header_len / 8 - 1) as u8]);
    packet.extend(options);
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

/// Tests that MLD messages need a link-local source address (RFC 2710 section 3, RFC 3810 sections 5.1.14 and 5.2.13).
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

/// Tests that a report from the unspecified address is ignored; the host reports again when it has a link-local address
/// (RFC 3810 section 5.2.13).
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
            query: query.clone(),
            suppress: false,
        };
        assert_eq!(message::parse(&packet), Some(expected));
        let all = if own.contains(':') { "ff02::1" } else { "224.0.0.1" };
        assert_eq!(to, query.group.unwrap_or(address(all)));
        // The library etherparse accepts the packet, too.
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
            IpAddr::V4(to) => {
                packet[16..20].copy_from_slice(&to.octets());
                set_header_checksum(&mut packet);
            }
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

/// Returns an IGMPv3 query, for a group if it is not 0.0.0.0 (RFC 3376 section 4.1).
fn igmp_3_query(code: u8, flags: u8, group: [u8; 4], sources: &[[u8; 4]]) -> Vec<u8> {
    let mut message = [
        &[0x11, code, 0, 0][..],
        &group,
        &[flags, 125, 0, sources.len() as u8],
    ]
    .concat();
    message.extend(sources.as_flattened());
    message
}

/// Returns an MLDv2 query, for a group if it is not :: (RFC 3810 section 5.1).
fn mld_2_query(code: u16, flags: u8, group: &str, sources: &[&str]) -> Vec<u8> {
    let mut message = [&[130, 0, 0, 0][..], &code.to_be_bytes(), &[0, 0]].concat();
    let octets = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
    message.extend(octets(group));
    message.extend([flags, 125, 0, sources.len() as u8]);
    message.extend(sources.iter().flat_map(|source| octets(source)));
    message
}

const HOST: [u8; 4] = [10, 0, 0, 7];
const GENERAL: [u8; 8] = [0x11, 100, 0, 0, 0, 0, 0, 0];
const ALL: [u8; 4] = [224, 0, 0, 1];
const GROUP: [u8; 4] = [239, 1, 1, 1];

/// Tests packets that hosts and routers discard (RFC 1122 section 3.2.1, RFC 1812 section 5.2.2), beside valid packets
/// with the same message.
#[test]
fn igmp_messages_in_packets_that_hosts_discard_are_ignored() {
    for (message, to) in [(GENERAL, ALL), ([0x16, 0, 0, 0, 239, 1, 1, 1], GROUP)] {
        let packet = igmp_with(HOST, to, &[], &message);
        let field = |at: usize, bytes: [u8; 2]| {
            let mut packet = packet.clone();
            packet[at..at + 2].copy_from_slice(&bytes);
            set_header_checksum(&mut packet);
            message::parse(&packet).is_some()
        };
        // Identification, flags and offset: don't fragment; more fragments; offset 8; the last possible offset.
        let accepted = [[0x40, 0], [0x20, 0], [0, 1], [0x1f, 0xff]].map(|bytes| field(6, bytes));
        assert_eq!(accepted, [true, false, false, false], "fragments");
        assert!(field(4, [1, 2]), "identification");
        for sum in 0..=1 {
            let mut packet = packet.clone();
            packet[11] ^= sum;
            assert_eq!(message::parse(&packet).is_some(), sum == 0, "header checksum");
        }
        for (from, is_accepted) in [
            ([10, 0, 0, 7], true),
            ([126, 255, 255, 255], true),
            ([127, 0, 0, 1], false),
            ([127, 255, 255, 255], false),
            ([128, 0, 0, 1], true),
            ([223, 255, 255, 255], true),
            ([224, 0, 0, 1], false),
            ([239, 255, 255, 255], false),
            ([240, 0, 0, 1], true),
            ([255, 255, 255, 255], false),
            ([0, 0, 0, 1], false),
            ([0, 255, 255, 255], false),
            ([1, 0, 0, 0], true),
            // RFC 3376 section 4.2.13.
            ([0, 0, 0, 0], true),
        ] {
            let packet = igmp_with(from, to, &[], &message);
            assert_eq!(message::parse(&packet).is_some(), is_accepted, "{from:?}");
        }
    }
}

/// Tests packets with invalid options, which hosts discard, and with options other than router alert: hosts ignore
/// options that they do not support, but discard source routes, so queries with such options are ignored.
#[test]
fn igmp_messages_with_options_that_hosts_discard_are_ignored() {
    let report = [0x16, 0, 0, 0, 239, 1, 1, 1];
    for (options, report_accepted, query_accepted) in [
        (&[][..], true, true),
        (&[0x94, 4, 0, 0], true, true),
        (&[1, 1, 1, 0], true, true),
        (&[0x94, 4, 0, 0, 0, 9, 9, 9], true, true),
        // Lengths of 0, 1 and beyond the header; no length.
        (&[0x94, 0, 0, 0], false, false),
        (&[0x94, 1, 0, 0], false, false),
        (&[0x94, 5, 0, 0], false, false),
        (&[1, 1, 1, 0x94], false, false),
        // Router alert with a reserved value; loose and strict source route; timestamp; an unknown option.
        (&[0x94, 4, 0, 1], true, false),
        (&[0x83, 7, 4, 10, 0, 0, 9, 0], true, false),
        (&[0x89, 7, 4, 10, 0, 0, 9, 0], true, false),
        (&[0x44, 4, 5, 0], true, false),
        (&[0x9e, 2, 0, 0], true, false),
    ] {
        for (message, to, is_accepted) in [(report, GROUP, report_accepted), (GENERAL, ALL, query_accepted)] {
            let packet = igmp_with(HOST, to, options, &message);
            assert_eq!(
                message::parse(&packet).is_some(),
                is_accepted,
                "{options:?} {}",
                message[0]
            );
        }
    }
}

/// Tests that queries of other lengths are ignored, as by hosts (RFC 3376 section 7.1, RFC 3810 section 8.1). Reports
/// may be longer (RFC 2236 section 2.5, RFC 2710 section 3.6).
#[test]
fn lengths_of_messages_distinguish_their_versions() {
    let accepted = |message: &[u8], len: usize| {
        let mut message = message.to_vec();
        message.resize(len, 0);
        let packet = match message[0] {
            0x11 => igmp_with(HOST, ALL, &[], &message),
            0x16 => igmp_with(HOST, GROUP, &[], &message),
            130 => mld("fe80::7", "ff02::1", &message),
            _ => mld("fe80::7", "ff1e::1", &message),
        };
        message::parse(&packet).is_some()
    };
    let lengths = |message: &[u8]| -> Vec<usize> { (4..33).filter(|len| accepted(message, *len)).collect() };
    let mut igmp_query_lengths = vec![8];
    igmp_query_lengths.extend(12..33);
    assert_eq!(lengths(&GENERAL), igmp_query_lengths);
    assert_eq!(
        lengths(&[0x16, 0, 0, 0, 239, 1, 1, 1]),
        (8..33).collect::<Vec<_>>()
    );
    let mut general = mld_1(130);
    general[8..].fill(0);
    assert_eq!(lengths(&general), [24, 28, 29, 30, 31, 32]);
    assert_eq!(lengths(&mld_1(131)), (24..33).collect::<Vec<_>>());
}

/// Tests MLD messages without router alert, which hosts and routers drop (RFC 3810 sections 6.2 and 7.4), and packets
/// with certain unknown options (RFC 8200 section 4.2).
#[test]
fn mld_messages_with_options_that_hosts_discard_are_ignored() {
    let query = mld_2_query(10_000, 0, "::", &[]);
    let alert_and = |others: &[u8]| [&[5, 2, 0, 0], others].concat();
    for (options, report_accepted, query_accepted) in [
        (alert_and(&[1, 0]), true, true),
        (alert_and(&[0, 0]), true, true),
        (vec![1, 0, 5, 2, 0, 0], true, true),
        (alert_and(&[1, 0, 5, 2, 0, 0, 1, 2, 0, 0]), true, true),
        // No router alert; one with another value, for example for RSVP; one with another length.
        (vec![1, 4, 0, 0, 0, 0], false, false),
        (vec![5, 2, 0, 1, 1, 0], false, false),
        (vec![5, 1, 0, 1, 1, 0], false, false),
        (vec![5, 3, 0, 0, 0, 0], false, false),
        // The data of another option contains a router alert, which is not an option itself.
        (vec![1, 8, 5, 2, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0], false, false),
        // An option with which hosts discard the packet, and one with which they do not (RFC 8200 section 4.2).
        (alert_and(&[0x40, 0]), false, false),
        (alert_and(&[0x9e, 0]), false, false),
        (alert_and(&[0xc2, 0]), false, false),
        (alert_and(&[0x1e, 0]), true, false),
        // Lengths beyond the header.
        (alert_and(&[1, 1]), false, false),
        (alert_and(&[0, 1]), false, false),
        (alert_and(&[0, 5]), false, false),
        // Padding of 7 and 8 bytes, and padding other than zeros.
        (vec![1, 5, 0, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0, 0], true, true),
        (vec![1, 6, 0, 0, 0, 0, 0, 0, 5, 2, 0, 0, 1, 0], true, false),
        (vec![1, 1, 7, 5, 2, 0, 0, 0, 1, 3, 0, 0, 0, 0], true, false),
        (vec![1, 1, 0, 5, 2, 0, 0, 0, 1, 3, 0, 0, 0, 0], true, true),
    ] {
        for (message, to, is_accepted) in [
            (&mld_report(), "ff02::16", report_accepted),
            (&mld_1(131), "ff1e::1", report_accepted),
            (&query, "ff02::1", query_accepted),
        ] {
            let packet = mld_with("fe80::7", to, &options, message);
            let accepted = message::parse(&packet).is_some();
            assert_eq!(accepted, is_accepted, "{options:?} {}", message[0]);
        }
    }
}

/// Tests general queries that name senders, which the RFCs forbid (RFC 3376 section 4.1.9, RFC 3810 section 5.1.12),
/// and queries to a unicast address, which reach one host only.
#[test]
fn queries_for_senders_of_no_group_and_queries_to_a_unicast_address_are_ignored() {
    let igmp_query = |group, to, sources: &[[u8; 4]]| {
        let message = igmp_3_query(10, 0, group, sources);
        message::parse(&igmp_with(HOST, to, &[], &message)).is_some()
    };
    assert!(igmp_query([0; 4], ALL, &[]) && igmp_query(GROUP, GROUP, &[HOST]));
    assert!(!igmp_query([0; 4], ALL, &[HOST]));
    assert!(!igmp_query([10, 0, 0, 5], [10, 0, 0, 5], &[]));
    let mld_query = |group, to, sources: &[&str]| {
        let message = mld_2_query(1000, 0, group, sources);
        message::parse(&mld("fe80::7", to, &message)).is_some()
    };
    assert!(mld_query("::", "ff02::1", &[]) && mld_query("ff1e::1", "ff1e::1", &["2001:db8::1"]));
    assert!(!mld_query("::", "ff02::1", &["2001:db8::1"]));
    assert!(!mld_query("fe80::5", "fe80::5", &[]));
}

/// Returns the maximum response time in milliseconds, and the S flag, of a query.
fn response_time(packet: &[u8]) -> Option<(u128, bool)> {
    match message::parse(packet)? {
        Message::Query { query, suppress, .. } => Some((query.max_response_time.as_millis(), suppress)),
        Message::Reports { .. } => None,
    }
}

#[test]
fn response_times_of_igmp_queries_are_decoded() {
    for (code, in_v2, in_v3) in [
        // IGMPv1 queries state no response time; it is 10 seconds.
        (0, 10_000, 0),
        (1, 100, 100),
        (100, 10_000, 10_000),
        (127, 12_700, 12_700),
        // RFC 3376 section 4.1.1: (mant | 0x10) << (exp + 3).
        (0x80, 12_800, 12_800),
        (0x8f, 14_300, 24_800),
        (0x90, 14_400, 25_600),
        (0xff, 25_500, 3_174_400),
    ] {
        let v2 = igmp_with(HOST, ALL, &[], &[0x11, code, 0, 0, 0, 0, 0, 0]);
        assert_eq!(response_time(&v2), Some((in_v2, false)), "{code:#x}");
        for flags in [0, 8, 0xf7] {
            let v3 = igmp_with(HOST, ALL, &[], &igmp_3_query(code, flags, [0; 4], &[]));
            assert_eq!(response_time(&v3), Some((in_v3, flags == 8)), "{code:#x}");
        }
    }
}

/// Tests that an IGMPv1 query with a group is a general query, as hosts treat it (RFC 1112 appendix I), but only if it
/// is sent to all hosts.
#[test]
fn group_of_an_igmp_1_query_is_ignored() {
    let message = [0x11, 0, 0, 0, 239, 1, 1, 1];
    assert_eq!(message::parse(&igmp_with(HOST, GROUP, &[], &message)), None);
    let expected = Message::Query {
        from: HOST.into(),
        query: Query::general(),
        suppress: false,
    };
    assert_eq!(
        message::parse(&igmp_with(HOST, ALL, &[], &message)),
        Some(expected)
    );
}

#[test]
fn response_times_of_mld_queries_are_decoded() {
    for (code, in_v1, in_v2) in [
        (0, 0, 0),
        (10_000, 10_000, 10_000),
        (0x7fff, 32_767, 32_767),
        // RFC 3810 section 5.1.3: (mant | 0x1000) << (exp + 3).
        (0x8000, 32_768, 32_768),
        (0x8fff, 36_863, 65_528),
        (0xffff, 65_535, 8_387_584),
    ] {
        for flags in [0, 8, 0xf7] {
            let v2 = mld_2_query(code, flags, "::", &[]);
            let time = response_time(&mld("fe80::7", "ff02::1", &v2));
            assert_eq!(time, Some((in_v2, flags == 8)), "{code:#x}");
            let time = response_time(&mld("fe80::7", "ff02::1", &v2[..24]));
            assert_eq!(time, Some((in_v1, false)), "{code:#x}");
        }
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
