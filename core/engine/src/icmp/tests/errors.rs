use super::*;
use crate::Failure;
use crate::host::Problem;
use crate::test_world::{TROUBLE, problem};

#[test]
fn ping_socket_that_is_prohibited_is_answered_by_icmp() {
    let mut ping = Pinger::new();
    ping.world.host.opens.push_back(Failure::Prohibited);
    ping.send(GUEST, REMOTE, &REQUEST);
    assert_eq!(
        ping.world.down(),
        ["icmp 10.0.2.2 > 10.0.2.15 3/13 0 about 10.0.2.15 > 192.0.2.1 id 7 seq 1"]
    );
    assert_eq!(
        ping.world.moved(),
        [
            ("frames_down", 1),
            ("icmp_errors_down", 1),
            ("ping_prohibited", 1)
        ]
    );
    assert_eq!((ping.icmp.len(), ping.world.net.flows), (0, 0));

    ping.world.host.opens.push_back(Failure::Exhausted);
    ping.send(GUEST, REMOTE, &REQUEST);
    assert_eq!(ping.world.moved(), [("host_exhausted", 1)]);
}

#[test]
fn time_exceeded_of_routers_is_passed_on() {
    for ((guest, remote), router, (kind, request), quoted) in [
        (BOTH[0], "203.0.113.9", (11, 8), [0, 9]),
        (BOTH[1], "2001:db8::9", (3, 128), [0, 9]),
    ] {
        let mut ping = Pinger::new();
        ping.send(guest, remote, &REQUEST);
        ping.send(guest, remote, &Request { seq: 10, ..REQUEST });
        ping.world.forget();
        // The id and checksum of the host's request differ from the guest's, and are not compared.
        let message = [request, 0, 1, 1, 9, 9, quoted[0], quoted[1], 1, 2, 3];
        let expired = problem(remote, Some(router), kind, 0);
        ping.world.host.queue_problem(0, expired, &message);
        // An error without a copy of the request is assigned to the last request.
        ping.world.host.queue_problem(0, expired, b"");
        ping.event(0, TROUBLE);
        let line =
            |seq| format!("icmp {router} > {guest} {kind}/0 0 about {guest} > {remote} id 7 seq {seq}");
        assert_eq!(ping.world.down(), [line(9), line(10)]);
        assert_eq!(ping.world.moved(), [("frames_down", 2), ("icmp_errors_down", 2)]);
    }
}

#[test]
fn send_that_returns_an_earlier_error_is_repeated() {
    let mut ping = Pinger::new();
    ping.send(GUEST, REMOTE, &REQUEST);
    ping.world.forget();
    let unreachable = problem(REMOTE, Some("203.0.113.9"), 3, 1);
    ping.world.host.queue_problem(0, unreachable, b"");
    ping.world.host.sends.push_back(Err(Failure::HostUnreachable));
    ping.send(GUEST, REMOTE, &Request { seq: 2, ..REQUEST });
    assert_eq!(
        ping.world.calls(),
        [
            "0: ping 192.0.2.1 seq 2 hop 63 5 HostUnreachable",
            "0: ping 192.0.2.1 seq 2 hop 63 5"
        ]
    );
    assert_eq!(
        ping.world.moved(),
        [("frames_down", 1), ("icmp_errors_down", 1), ("ping_up", 1)]
    );
}

/// The kernel queues an ICMP error before it makes the next call fail, so the entry may be read before that call.
#[test]
fn send_that_returns_an_error_already_read_is_repeated() {
    let failed = "0: ping 192.0.2.1 seq 2 hop 63 5 HostUnreachable";
    for errors in [0, 1] {
        let mut ping = Pinger::new();
        ping.send(GUEST, REMOTE, &REQUEST);
        ping.world.forget();
        for _ in 0..errors {
            let unreachable = problem(REMOTE, Some("203.0.113.9"), 3, 1);
            ping.world.host.queue_problem(0, unreachable, b"");
        }
        let failures = vec![Err(Failure::HostUnreachable); errors + 1];
        ping.world.host.sends.extend(failures);
        ping.send(GUEST, REMOTE, &Request { seq: 2, ..REQUEST });
        let mut calls = vec![failed; errors + 1];
        calls.push("0: ping 192.0.2.1 seq 2 hop 63 5");
        assert_eq!(ping.world.calls(), calls);
        assert_eq!(ping.world.down().len(), errors);
        assert_eq!(ping.world.net.counters.ping_failed, 0);
    }
}

#[test]
fn send_error_is_reported_by_icmp() {
    for (failure, answer) in [
        (Failure::NetUnreachable, Some("3/0 0")),
        (Failure::HostUnreachable, Some("3/1 0")),
        (Failure::TooBig, Some("3/4 1400")),
        (Failure::WouldBlock, None),
        (Failure::Exhausted, None),
    ] {
        let mut ping = Pinger::new();
        ping.send(GUEST, REMOTE, &REQUEST);
        ping.world.forget();
        if failure == Failure::TooBig {
            let local = Problem {
                mtu: Some(1_400),
                ..problem(REMOTE, None, 0, 0)
            };
            ping.world.host.queue_problem(0, local, b"");
        }
        ping.world.host.sends.extend([Err(failure); 2]);
        let request = Request {
            hop_limit: 31,
            ..REQUEST
        };
        ping.send(GUEST, REMOTE, &request);
        let line = answer.map(|answer| {
            format!("icmp 10.0.2.2 > 10.0.2.15 {answer} about 10.0.2.15 > 192.0.2.1 id 7 seq 1")
        });
        assert_eq!(ping.world.down(), Vec::from_iter(line));
        assert!(ping.world.moved().contains(&("ping_failed", 1)));
    }
}

#[test]
fn first_requests_too_big_for_the_hosts_interface_are_fragmented() {
    let mut ping = Pinger::new();
    ping.send(GUEST, REMOTE, &REQUEST);
    ping.world.forget();
    let local = Problem {
        mtu: Some(1_400),
        ..problem(REMOTE, None, 0, 0)
    };
    ping.world.host.queue_problem(0, local, b"");
    ping.world.host.sends.push_back(Err(Failure::TooBig));
    ping.send(GUEST, REMOTE, &REQUEST);
    assert_eq!(
        ping.world.down(),
        ["icmp 10.0.2.2 > 10.0.2.15 3/4 1400 about 10.0.2.15 > 192.0.2.1 id 0 seq 0"]
    );
    assert_eq!(
        ping.world.moved(),
        [("frames_down", 1), ("icmp_errors_down", 1), ("ping_up", 1)]
    );
}
