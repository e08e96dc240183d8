//! Tests of connections that are established, refused, or time out.

use super::*;

#[test]
fn refused_connect_is_reported_to_the_guest() {
    for answer in [
        ConnectResult::Fail(Failure::Refused),
        ConnectResult::FailAfter(SECOND / 2, Failure::Refused),
    ] {
        for scenario in everywhere(&connection(
            Opening::Guest(answer),
            Script::source(10),
            Script::SINK,
        )) {
            let run = check(scenario.run(true));
            assert_eq!(
                (run.counters.tcp_connect_failed, run.counters.icmp_errors_down),
                (1, 0)
            );
        }
    }
}

#[test]
fn unreachable_destination_is_reported_to_the_guest() {
    for failure in [Failure::NetUnreachable, Failure::HostUnreachable] {
        let opening = Opening::Guest(ConnectResult::FailAfter(SECOND / 2, failure));
        for scenario in everywhere(&connection(opening, Script::source(10), Script::SINK)) {
            let run = check(scenario.run(true));
            assert_eq!(
                (run.counters.tcp_connect_failed, run.counters.icmp_errors_down),
                (1, 1)
            );
        }
    }
}

#[test]
fn connect_without_an_answer_times_out() {
    for scenario in everywhere(&connection(
        Opening::Guest(ConnectResult::Never),
        Script::source(10),
        Script::SINK,
    )) {
        let run = check(scenario.run(true));
        assert_eq!(run.counters.tcp_connect_failed, 1);
    }
}

#[test]
fn successful_connects_are_timed() {
    for (answer, time) in [
        (ConnectResult::Now, Duration::ZERO),
        (ConnectResult::After(SECOND / 2), SECOND / 2),
        (
            ConnectResult::FailAfter(SECOND / 2, Failure::Refused),
            Duration::ZERO,
        ),
    ] {
        for scenario in everywhere(&connection(
            Opening::Guest(answer),
            Script::source(10),
            Script::SINK,
        )) {
            // The engine measures the time up to the turn of the worker's loop that processes the event.
            let connecting = check(scenario.run(true)).connecting;
            assert!(
                connecting.abs_diff(time) < Duration::from_millis(1),
                "{connecting:?}: {answer:?}"
            );
        }
    }
}

#[test]
fn lost_syn_ack_is_retransmitted() {
    for scenario in everywhere(&dial(Script::source(1000), Script::SINK)) {
        let (down, lost) = lose(2, |segment| segment.flags.has(SYN));
        check(scenario.run_filtered(true, None, down));
        assert_eq!(lost.load(Ordering::Relaxed), 2);
    }
}

#[test]
fn client_of_a_published_port_is_connected() {
    for scenario in everywhere(&connection(
        Opening::Host,
        Script::echo(),
        Script::source(100_000),
    )) {
        let run = check(scenario.run(true));
        assert_eq!(run.counters.tcp_accepted, 1);
    }
}

#[test]
fn client_of_a_published_port_is_reset_if_the_guest_refuses() {
    for scenario in everywhere(&connection(
        Opening::HostToClosedPort,
        Script::SINK,
        Script::source(10),
    )) {
        check(scenario.run(true));
    }
}

#[test]
fn client_of_a_published_port_times_out_if_the_guest_does_not_answer() {
    for scenario in everywhere(&connection(
        Opening::HostToClosedPort,
        Script::SINK,
        Script::source(10),
    )) {
        let (down, lost) = lose(u32::MAX, |segment| segment.flags.has(SYN));
        check(scenario.run_filtered(true, None, down));
        assert!(lost.load(Ordering::Relaxed) >= 3);
    }
}
