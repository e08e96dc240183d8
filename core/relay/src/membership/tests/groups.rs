//! Tests of reports of hosts and of the expiry of memberships.

use super::*;

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
