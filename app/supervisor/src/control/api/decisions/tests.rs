//! Tests of the limits on requests that a compromised engine sends, and of their deadline.

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

/// Returns the state with a connected decider.
fn connected() -> Decisions {
    let mut decisions = Decisions::default();
    decisions.require(DEADLINE);
    decisions.set_descriptor(true);
    decisions
}

fn request(token: u64) -> DecisionRequest {
    DecisionRequest {
        token,
        protocol: EgressProtocol::Tcp,
        destination: Some("192.0.2.1:80".parse().unwrap()),
        published: None,
        guest: "10.0.2.15:4000".parse().unwrap(),
        remote: "192.0.2.1:80".parse().unwrap(),
        rule: None,
        deadline_ms: 60_000,
    }
}

#[test]
fn requests_with_the_token_of_a_pending_one_are_ignored() {
    let mut decisions = connected();
    let now = Instant::now();
    for _ in 0..3 * MAX_PENDING {
        decisions.take_requests(vec![request(1)], now);
    }
    assert_eq!((decisions.pending.len(), decisions.expiries.len()), (1, 1));
    while decisions.next_line().is_some() {}
    decisions.take_requests(vec![request(1)], now);
    assert_eq!(decisions.next_line(), None, "a second line for the same token");
}

#[test]
fn token_that_is_used_again_takes_no_memory_and_has_a_deadline_of_its_own() {
    let mut decisions = connected();
    let mut now = Instant::now();
    // The deadline of this request is before those of the others.
    decisions.take_requests(vec![request(0)], now);
    for _ in 0..5 * MAX_PENDING {
        now += Duration::from_micros(1);
        decisions.take_requests(vec![request(1)], now);
        while decisions.next_line().is_some() {}
        // The verdict.
        decisions.pending.remove(&1);
    }
    let most = 2 * MAX_PENDING + 1;
    assert!(
        decisions.expiries.len() <= most,
        "{} deadlines",
        decisions.expiries.len()
    );
    now += DEADLINE / 2;
    decisions.take_requests(vec![request(1)], now);
    decisions.expire(now + DEADLINE - Duration::from_nanos(1));
    let pending: Vec<_> = decisions.pending.keys().collect();
    assert_eq!(pending, [&1], "an earlier deadline has removed the request");
    decisions.expire(now + DEADLINE);
    assert_eq!((decisions.pending.len(), decisions.expiries.len()), (0, 0));
}

#[test]
fn requests_leave_the_queue_at_their_deadline() {
    let mut decisions = connected();
    let now = Instant::now();
    decisions.take_requests((0..MAX_QUEUED as u64).map(request).collect(), now);
    let later = now + DEADLINE / 2;
    decisions.take_requests(vec![request(9000)], later);
    assert_eq!(decisions.queue.len(), MAX_QUEUED, "more than the limit");
    let late = now + DEADLINE;
    decisions.take_requests(vec![request(9001)], late);
    assert!(
        decisions
            .next_line()
            .is_some_and(|line| line == super::line(request(9001)))
    );
    assert_eq!(decisions.next_line(), None);
}
