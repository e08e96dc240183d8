use std::net::{Ipv4Addr, Ipv6Addr};

use pontoon_wire::checksum::Sum;
use proptest::prelude::*;

use super::*;

pub(super) fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A querier, and the memberships that the supervisor learns from its reports.
pub(super) struct ReportedQuerier {
    pub(super) querier: Querier,
    pub(super) memberships: Memberships,
}

impl std::ops::Deref for ReportedQuerier {
    type Target = Querier;

    fn deref(&self) -> &Querier {
        &self.querier
    }
}

impl std::ops::DerefMut for ReportedQuerier {
    fn deref_mut(&mut self) -> &mut Querier {
        &mut self.querier
    }
}

fn querier_at(own: &str) -> ReportedQuerier {
    let own = address(own);
    ReportedQuerier {
        querier: Querier::new(own, at(0)),
        memberships: Memberships::new(own.is_ipv6()),
    }
}

pub(super) fn querier() -> ReportedQuerier {
    querier_at("10.0.0.5")
}

fn report(group: &str, change: SourceChange) -> Message {
    let host = if group.contains(':') {
        "fe80::7"
    } else {
        "10.0.0.7"
    };
    report_of(host, group, change)
}

pub(super) fn report_of(host: &str, group: &str, change: SourceChange) -> Message {
    Message::Reports {
        from: address(host),
        records: vec![Record {
            group: address(group),
            change,
        }],
    }
}

fn from(sources: &[&str], exclusive: bool) -> SourceChange {
    SourceChange::Include {
        sources: sources.iter().map(|text| address(text)).collect(),
        exclusive,
    }
}

/// Returns the memberships after all changes so far have been reported.
pub(super) fn wanted(reporting: &mut ReportedQuerier) -> Vec<String> {
    while let Some((group, filter)) = reporting.querier.next_change() {
        reporting.memberships.set(group, filter).unwrap();
    }
    shown(&reporting.memberships)
}

fn shown(memberships: &Memberships) -> Vec<String> {
    let shown = |(group, source): (IpAddr, Option<IpAddr>)| match source {
        None => group.to_string(),
        Some(source) => format!("{group} from {source}"),
    };
    memberships.iter().map(shown).collect()
}

#[test]
fn two_startup_queries_are_sent_and_then_one_every_125_seconds() {
    let mut querier = querier();
    let mut sent = Vec::new();
    for second in 0..400 {
        if querier.tick(at(second)) == [Query::general()] {
            sent.push(second);
        }
    }
    // The second startup query is due after 31.25 s.
    assert_eq!(sent, [0, 32, 157, 282]);
}

#[test]
fn membership_expires_260_seconds_after_the_last_report() {
    let mut querier = querier();
    querier.handle(report("239.1.1.1", SourceChange::Any), at(10));
    assert_eq!(wanted(&mut querier), ["239.1.1.1"]);
    querier.handle(report("239.1.1.1", SourceChange::Any), at(100));
    querier.tick(at(359));
    assert_eq!(wanted(&mut querier), ["239.1.1.1"]);
    querier.tick(at(360));
    assert!(wanted(&mut querier).is_empty());
}

#[test]
fn leave_is_queried_and_ends_the_membership_after_2_seconds() {
    let mut querier = querier();
    querier.handle(report("239.1.1.1", SourceChange::Any), at(0));
    querier.tick(at(0));
    querier.handle(report("239.1.1.1", from(&[], true)), at(10));
    assert_eq!(querier.next_tick(), at(10));
    assert_eq!(querier.tick(at(10)), [Query::group(address("239.1.1.1"))]);
    assert_eq!(querier.tick(at(11)), [Query::group(address("239.1.1.1"))]);
    assert_eq!(wanted(&mut querier), ["239.1.1.1"]);
    assert!(querier.tick(at(12)).is_empty());
    assert!(wanted(&mut querier).is_empty());
}

#[test]
fn report_after_a_leave_keeps_the_membership() {
    let mut querier = querier();
    querier.handle(report("239.1.1.1", SourceChange::Any), at(0));
    querier.tick(at(0));
    querier.handle(report("239.1.1.1", from(&[], true)), at(10));
    querier.tick(at(10));
    querier.handle(report("239.1.1.1", SourceChange::Any), at(10));
    assert!(querier.tick(at(11)).is_empty());
    querier.tick(at(200));
    assert_eq!(wanted(&mut querier), ["239.1.1.1"]);
}

/// A process that sleeps until the next tick must not wake up at once, even after memberships have expired.
#[test]
fn next_tick_is_in_the_future_after_a_tick() {
    let mut querier = querier();
    querier.handle(report("239.1.1.1", SourceChange::Any), at(0));
    querier.handle(report("239.1.1.1", from(&["10.0.0.1"], false)), at(100));
    for second in 0..600 {
        querier.tick(at(second));
        assert!(querier.next_tick() > at(second), "{second}");
    }
}

#[test]
fn sources_are_added_and_blocked_one_by_one() {
    let mut querier = querier();
    querier.tick(at(0));
    querier.handle(report("232.1.1.1", from(&["10.0.0.1", "10.0.0.2"], false)), at(0));
    assert_eq!(
        wanted(&mut querier),
        ["232.1.1.1 from 10.0.0.1", "232.1.1.1 from 10.0.0.2"]
    );
    querier.handle(
        report(
            "232.1.1.1",
            SourceChange::Block(vec![address("10.0.0.1"), address("10.0.0.9")]),
        ),
        at(5),
    );
    let query = Query::sources(address("232.1.1.1"), vec![address("10.0.0.1")]);
    assert_eq!(querier.tick(at(5)), [query]);
    querier.tick(at(7));
    assert_eq!(wanted(&mut querier), ["232.1.1.1 from 10.0.0.2"]);
    // Another host joins the group for any sender.
    querier.handle(report("232.1.1.1", SourceChange::Any), at(8));
    assert_eq!(wanted(&mut querier), ["232.1.1.1"]);
    // Then that host limits its membership to one sender.
    querier.handle(report("232.1.1.1", from(&["10.0.0.3"], true)), at(9));
    querier.tick(at(11));
    assert_eq!(
        wanted(&mut querier),
        ["232.1.1.1 from 10.0.0.2", "232.1.1.1 from 10.0.0.3"]
    );
}

#[test]
fn router_with_the_lowest_address_is_querier() {
    let query = |text: &str| Message::Query {
        from: address(text),
        group: None,
        sources: Vec::new(),
    };
    let mut querier = querier();
    querier.tick(at(0));
    querier.handle(query("10.0.0.9"), at(1));
    querier.handle(query("0.0.0.0"), at(1));
    assert_eq!(querier.tick(at(40)), [Query::general()]);
    querier.handle(query("10.0.0.4"), at(50));
    assert_eq!(querier.next_tick(), at(305));
    assert!(querier.tick(at(304)).is_empty());
    assert_eq!(querier.tick(at(305)), [Query::general()]);
}

#[test]
fn link_local_groups_are_ignored() {
    let (mut v4, mut v6) = (querier(), querier_at("fe80::5"));
    for group in ["224.0.0.251", "10.0.0.1", "ff02::fb", "ff01::1", "2001:db8::1"] {
        v4.handle(report(group, SourceChange::Any), at(0));
        v6.handle(report(group, SourceChange::Any), at(0));
    }
    assert!(wanted(&mut v4).is_empty() && wanted(&mut v6).is_empty());
    // The querier of each family handles the groups of its own family only.
    for group in ["224.0.1.1", "ff05::1"] {
        v4.handle(report(group, SourceChange::Any), at(0));
        v6.handle(report(group, SourceChange::Any), at(0));
    }
    assert_eq!(wanted(&mut v4), ["224.0.1.1"]);
    assert_eq!(wanted(&mut v6), ["ff05::1"]);
}

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

#[test]
fn queries_of_the_other_family_are_ignored() {
    let query = |text: &str| Message::Query {
        from: address(text),
        group: None,
        sources: Vec::new(),
    };
    // Each address is numerically lower than that of the querier, and would win the election.
    for (own, other) in [("10.0.0.5", "::2"), ("fe80::5", "10.0.0.1")] {
        let mut querier = querier_at(own);
        querier.tick(at(0));
        querier.handle(query(other), at(1));
        assert_eq!(querier.tick(at(40)), [Query::general()], "{own}");
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

#[test]
fn memberships_keep_the_order_in_which_groups_were_added() {
    let mut memberships = Memberships::new(false);
    let mut set = |group: &str, sources: Option<&[&str]>| {
        let sources = sources.map(|texts| texts.iter().map(|text| address(text)).collect());
        memberships.set(
            address(group),
            sources.map_or(SourceFilter::Any, SourceFilter::Sources),
        )
    };
    set("239.1.1.9", None).unwrap();
    set("239.1.1.1", Some(&["10.0.0.1", "10.0.0.2"])).unwrap();
    set("239.1.1.5", None).unwrap();
    set("239.1.1.9", Some(&["10.0.0.3"])).unwrap();
    set("239.1.1.5", Some(&[])).unwrap();
    assert_eq!(
        shown(&memberships),
        [
            "239.1.1.9 from 10.0.0.3",
            "239.1.1.1 from 10.0.0.1",
            "239.1.1.1 from 10.0.0.2"
        ]
    );
}

#[test]
fn memberships_refuse_what_no_querier_reports() {
    let mut memberships = Memberships::new(false);
    let sources = |count: u32| -> Vec<IpAddr> {
        let source = |number| Ipv4Addr::from(0x0a00_0000 + number).into();
        (1..=count).map(source).collect()
    };
    for (group, filter) in [
        ("224.0.0.251", SourceFilter::Any),
        ("10.0.0.1", SourceFilter::Any),
        ("ff05::1", SourceFilter::Any),
        ("239.1.1.1", SourceFilter::Sources(vec![address("239.1.1.2")])),
        ("239.1.1.1", SourceFilter::Sources(vec![address("0.0.0.0")])),
        ("239.1.1.1", SourceFilter::Sources(vec![address("2001:db8::1")])),
        ("239.1.1.1", SourceFilter::Sources(sources(65))),
    ] {
        assert_eq!(
            memberships.set(address(group), filter),
            Err(InvalidMembership),
            "{group}"
        );
    }
    for number in 0..4096_u32 {
        let group = Ipv4Addr::from(0xef00_0000 + number).into();
        memberships
            .set(group, SourceFilter::Sources(sources(64)))
            .unwrap();
    }
    let one_more = memberships.set(address("239.255.0.1"), SourceFilter::Any);
    assert_eq!(one_more, Err(InvalidMembership));
    memberships.set(address("239.0.0.1"), SourceFilter::Any).unwrap();
}

#[test]
fn restored_memberships_expire_unless_they_are_reported() {
    let mut querier = querier();
    querier.restore(address("239.1.1.1"), SourceFilter::Any, at(260));
    querier.restore(
        address("239.1.1.2"),
        SourceFilter::Sources(vec![address("10.0.0.1")]),
        at(260),
    );
    assert!(
        !querier.has_changes(),
        "restored memberships are not reported again"
    );
    assert_eq!(querier.tick(at(0)), [Query::general()]);
    querier.handle(report("239.1.1.2", from(&["10.0.0.1"], false)), at(5));
    assert!(!querier.has_changes());
    querier.tick(at(259));
    assert!(!querier.has_changes());
    querier.tick(at(260));
    assert_eq!(
        querier.next_change(),
        Some((address("239.1.1.1"), SourceFilter::Sources(Vec::new())))
    );
    assert!(!querier.has_changes());
}

#[test]
fn new_querier_address_keeps_memberships() {
    let mut querier = querier();
    querier.handle(report("239.1.1.1", SourceChange::Any), at(0));
    querier.tick(at(0));
    querier.set_address(address("10.0.0.9"), at(10));
    assert_eq!(querier.tick(at(10)), [Query::general()]);
    assert!(querier.tick(at(50)).is_empty());
    assert_eq!(wanted(&mut querier), ["239.1.1.1"]);
}

/// The supervisor sends rules to the workers as text, which workers have to be able to parse.
#[test]
fn every_membership_makes_a_rule_whose_text_parses() {
    for (own, group, source) in [
        ("10.0.0.5", "239.1.1.1", "255.255.255.255"),
        ("fe80::5", "ff3e::1", "::ffff:192.0.2.1"),
    ] {
        let mut reporting = querier_at(own);
        let change = from(&[source], false);
        reporting.handle(report(group, change), at(1));
        while let Some((group, filter)) = reporting.querier.next_change() {
            let _ = reporting.memberships.set(group, filter);
        }
        // A compromised querier may report an address that a host has sent.
        let filter = SourceFilter::Sources(vec![address(source)]);
        let _ = reporting.memberships.set(address(group), filter);
        let member = |(group, source)| crate::proxy::Member {
            interface: "b".to_owned(),
            group,
            source,
        };
        let members: Vec<_> = reporting.memberships.iter().map(member).collect();
        let proxy: crate::proxy::Proxy = "a -> b".parse().unwrap();
        for rule in proxy.rules(&members) {
            assert!(rule.parses_back(), "{rule}");
        }
    }
}

#[test]
fn leave_for_which_no_query_is_sent_ends_no_membership() {
    let mut querier = querier();
    querier.tick(at(0));
    // A host joins and leaves as many groups as there can be pending queries.
    let groups: Vec<String> = (0..2048_u16)
        .map(|n| format!("239.2.{}.{}", n >> 8, n & 255))
        .collect();
    for group in &groups {
        querier.handle(report(group, SourceChange::Any), at(1));
    }
    querier.handle(report("239.1.1.1", SourceChange::Any), at(1));
    for group in &groups {
        querier.handle(report(group, from(&[], true)), at(2));
    }
    // Then the host leaves a group that another host has joined.
    querier.handle(report("239.1.1.1", from(&[], true)), at(2));
    let asked = |queries: Vec<Query>| {
        queries
            .iter()
            .any(|query| query.group == Some(address("239.1.1.1")))
    };
    let is_asked = asked(querier.tick(at(2))) | asked(querier.tick(at(3)));
    querier.tick(at(5));
    let is_wanted = wanted(&mut querier).contains(&"239.1.1.1".to_owned());
    assert!(is_asked || is_wanted, "the group has ended without a query");
}

#[test]
fn leave_to_a_router_that_sends_no_queries_ends_no_membership() {
    let mut querier = querier();
    querier.handle(report("239.1.1.1", SourceChange::Any), at(1));
    // Another router is the querier (RFC 2236 section 7: a non-querier ignores leave messages).
    let query = Message::Query {
        from: address("10.0.0.1"),
        group: None,
        sources: Vec::new(),
    };
    querier.handle(query, at(2));
    querier.handle(report("239.1.1.1", from(&[], true)), at(3));
    assert!(querier.tick(at(6)).is_empty());
    assert_eq!(wanted(&mut querier), ["239.1.1.1"]);
}

#[test]
fn leave_while_no_query_can_be_sent_ends_no_membership() {
    let mut querier = querier();
    querier.handle(report("239.1.1.1", SourceChange::Any), at(1));
    querier.querier.set_can_send(false);
    querier.handle(report("239.1.1.1", from(&[], true)), at(2));
    querier.tick(at(5));
    assert_eq!(wanted(&mut querier), ["239.1.1.1"]);
}
