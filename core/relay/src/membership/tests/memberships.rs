//! Tests of the memberships that the supervisor keeps.

use super::*;

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

/// Tests that workers can parse the rules that the supervisor sends to them as text.
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
