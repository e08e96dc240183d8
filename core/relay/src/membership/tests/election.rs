//! Tests of queries of other routers.

use super::*;

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
