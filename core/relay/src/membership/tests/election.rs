//! Tests of queries of other routers.

use super::*;

/// Returns a query with a clear S flag.
fn query_of(from: &str, query: Query) -> Message {
    Message::Query {
        from: address(from),
        query,
        suppress: false,
    }
}

fn with_response_time(query: Query, max_response_time: Duration) -> Query {
    Query {
        max_response_time,
        ..query
    }
}

#[test]
fn router_with_the_lowest_address_is_querier() {
    let query = |text: &str| query_of(text, Query::general());
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
    let query = |text: &str| query_of(text, Query::general());
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
    querier.handle(query_of("10.0.0.1", Query::general()), at(2));
    querier.handle(report("239.1.1.1", from(&[], true)), at(3));
    assert!(querier.tick(at(6)).is_empty());
    assert_eq!(wanted(&mut querier), ["239.1.1.1"]);
}

/// Tests that only a general query ends the role of querier: a query for a group reaches the members of the group only.
#[test]
fn query_for_a_group_does_not_end_the_role_of_querier() {
    let mut querier = querier();
    querier.tick(at(0));
    querier.handle(query_of("10.0.0.1", Query::group(address("239.9.9.9"))), at(1));
    assert_eq!(querier.tick(at(40)), [Query::general()]);
}

/// Tests a general query that violates RFC 3376 section 8.3: the query response interval is less than the query
/// interval.
#[test]
fn general_query_with_a_response_time_of_a_query_interval_is_ignored() {
    for (seconds, is_ignored) in [(0, false), (124, false), (125, true), (3174, true)] {
        let mut querier = querier();
        querier.tick(at(0));
        let query = with_response_time(Query::general(), at(seconds));
        querier.handle(query_of("10.0.0.1", query), at(1));
        let sent = querier.tick(at(40));
        assert_eq!(sent == [Query::general()], is_ignored, "{seconds} s");
    }
}

/// Tests that the timers are lowered to two maximum response times (RFC 2236 section 3, RFC 3376 section 6.6.1), but to
/// no less than 2 seconds. The membership expires 260 seconds after the report at the latest.
#[test]
fn query_for_a_group_ends_the_membership_after_two_response_times() {
    for (response_time, expiry) in [
        (Duration::ZERO, 102),
        (Duration::from_millis(100), 102),
        (at(1), 102),
        (at(5), 110),
        (Duration::from_millis(25_500), 151),
        (at(3174), 260),
        (at(8387), 260),
    ] {
        for sources in [&[][..], &["10.9.9.9"]] {
            let mut querier = querier();
            let change = match sources {
                [] => SourceChange::Any,
                _ => from(sources, false),
            };
            querier.handle(report("239.1.1.1", change), at(0));
            let sources = sources.iter().map(|source| address(source)).collect();
            let query = with_response_time(Query::sources(address("239.1.1.1"), sources), response_time);
            querier.handle(query_of("10.0.0.1", query), at(100));
            querier.tick(at(expiry - 1));
            assert_eq!(wanted(&mut querier).len(), 1, "{response_time:?}");
            querier.tick(at(expiry));
            assert!(wanted(&mut querier).is_empty(), "{response_time:?}");
        }
    }
}

#[test]
fn query_with_the_s_flag_changes_no_timer() {
    for (suppress, expected) in [(true, 1), (false, 0)] {
        let mut querier = querier();
        querier.handle(report("239.1.1.1", SourceChange::Any), at(0));
        let query = Message::Query {
            from: address("10.0.0.1"),
            query: Query::group(address("239.1.1.1")),
            suppress,
        };
        querier.handle(query, at(10));
        querier.tick(at(20));
        assert_eq!(wanted(&mut querier).len(), expected);
    }
}

/// Tests that a membership lasts for the other querier present interval of 255 seconds, in which the querier may be
/// silent before this router sends queries, and the maximum response time of hosts, and not for much longer.
#[test]
fn membership_outlasts_a_silent_querier() {
    for (response_time, expiry) in [(0, 266), (10, 266), (25, 281), (124, 380)] {
        let mut querier = querier();
        let query = with_response_time(Query::general(), at(response_time));
        querier.handle(query_of("10.0.0.1", query), at(0));
        querier.handle(report("239.1.1.1", SourceChange::Any), at(0));
        querier.handle(report("239.1.1.2", from(&["10.9.9.9"], false)), at(0));
        querier.tick(at(expiry - 1));
        assert_eq!(wanted(&mut querier).len(), 2, "{response_time} s");
        querier.tick(at(expiry));
        assert!(wanted(&mut querier).is_empty(), "{response_time} s");
    }
}

/// Hosts respond to the other router's general query only, within its maximum response time.
#[test]
fn memberships_with_scheduled_queries_outlive_the_role_of_querier() {
    let mut querier = querier();
    querier.tick(at(0));
    querier.handle(report("239.1.1.1", SourceChange::Any), at(1));
    querier.handle(report("239.1.1.1", from(&[], true)), at(3));
    let query = with_response_time(Query::general(), Duration::from_secs(100));
    querier.handle(query_of("10.0.0.1", query), at(3));
    assert!(querier.tick(at(6)).is_empty());
    assert_eq!(wanted(&mut querier), ["239.1.1.1"]);
    assert!(querier.tick(at(200)).is_empty());
    assert_eq!(wanted(&mut querier), ["239.1.1.1"]);
}
