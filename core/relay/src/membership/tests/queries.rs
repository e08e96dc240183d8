//! Tests of general queries and of queries after a leave.

use super::*;

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

/// Tests that a process which sleeps until the next tick does not wake up at once, even after memberships have expired.
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
fn new_querier_address_keeps_memberships() {
    let mut querier = querier();
    querier.handle(report("239.1.1.1", SourceChange::Any), at(0));
    querier.tick(at(0));
    querier.set_address(address("10.0.0.9"), at(10));
    assert_eq!(querier.tick(at(10)), [Query::general()]);
    assert!(querier.tick(at(50)).is_empty());
    assert_eq!(wanted(&mut querier), ["239.1.1.1"]);
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
fn leave_while_no_query_can_be_sent_ends_no_membership() {
    let mut querier = querier();
    querier.handle(report("239.1.1.1", SourceChange::Any), at(1));
    querier.querier.set_can_send(false);
    querier.handle(report("239.1.1.1", from(&[], true)), at(2));
    querier.tick(at(5));
    assert_eq!(wanted(&mut querier), ["239.1.1.1"]);
}
