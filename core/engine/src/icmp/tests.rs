//! Transcripts of echo forwarding: the guest's echo requests, calls of the host, frames to the guest, and changes of
//! counters.

use pontoon_wire::checksum::Sum;
use pontoon_wire::frame::{Body, Transport};
use pontoon_wire::protocol;
use pontoon_wire::vnet::Segmentation;

use super::Icmp;
use super::requested::MOST_ADDRESSES;
use crate::host::Problem;
use crate::test_world::{EventRecorder, READABLE, Sent, TROUBLE, World, problem, with_frame};
use crate::{Failure, Readiness};

const GUEST: &str = "10.0.2.15";
const GUEST_V6: &str = "fd70:6f6e:746f::15";
const REMOTE: &str = "192.0.2.1";
const REMOTE_V6: &str = "2001:db8::1";
const BOTH: [(&str, &str); 2] = [(GUEST, REMOTE), (GUEST_V6, REMOTE_V6)];

struct Pinger {
    world: World,
    icmp: Icmp<usize>,
}

/// An echo request of the guest.
struct Request<'a> {
    kind: Option<u8>,
    hop_limit: u8,
    ident: u16,
    seq: u16,
    data: &'a [u8],
}

const REQUEST: Request<'_> = Request {
    kind: None,
    hop_limit: 64,
    ident: 7,
    seq: 1,
    data: b"hello",
};

impl Pinger {
    fn new() -> Self {
        let mut world = World::new();
        let icmp = Icmp::new(&mut world.net.random);
        Self { world, icmp }
    }

    fn send(&mut self, from: &str, to: &str, request: &Request<'_>) {
        let sent = Sent {
            hop_limit: request.hop_limit,
            ..Sent::new(from, to, request.data)
        };
        let kind = request.kind.unwrap_or(if sent.from.is_ipv4() { 8 } else { 128 });
        let bytes = sent.icmp(kind, request.ident, request.seq);
        with_frame(&bytes, Segmentation::Whole, |frame, parsed| {
            let Body::Ip(ip, Transport::Icmp(icmp)) = &parsed.body else {
                panic!("not ICMP: {parsed:?}");
            };
            self.icmp.handle_message(frame, ip, icmp, &mut self.world.ctx());
        });
    }

    fn event(&mut self, socket: usize, ready: Readiness) {
        let flow = self.world.host.flow(socket);
        self.icmp.handle_socket(flow, ready, &mut self.world.ctx());
    }

    fn wait(&mut self, seconds: u64) {
        self.world.wait(seconds);
        for flow in self.world.expired() {
            self.icmp.handle_timeout(flow, &mut self.world.ctx());
        }
    }
}

/// The host may be assigned the guest's address while a request is pending.
#[test]
fn echo_reply_from_the_guest_is_dropped() {
    for (guest, remote) in BOTH {
        let mut ping = Pinger::new();
        ping.send(guest, remote, &REQUEST);
        let remote_net = remote.parse::<core::net::IpAddr>().unwrap().into();
        ping.world.net.policy.owned = [remote_net].into_iter().collect();
        ping.world.host.queue_reply(0, remote, 1, b"hello");
        ping.event(0, READABLE);
        assert_eq!(ping.world.link.describe(), [""; 0]);
    }
}

#[test]
fn echo_reply_has_the_id_of_the_request() {
    for (guest, remote) in BOTH {
        let mut ping = Pinger::new();
        ping.send(guest, remote, &REQUEST);
        let family = if guest == GUEST { "v4" } else { "v6" };
        assert_eq!(
            ping.world.calls(),
            [
                format!("0: ping {family}"),
                format!("0: ping {remote} seq 1 hop 63 5")
            ]
        );
        assert_eq!(ping.world.moved(), [("ping_up", 1)]);
        assert_eq!((ping.icmp.len(), ping.world.net.flows), (1, 1));

        ping.world.host.queue_reply(0, remote, 1, b"hello");
        ping.event(0, READABLE);
        assert_eq!(
            ping.world.down(),
            [format!("echo {remote} > {guest} id 7 seq 1 hop 57 5")]
        );
        assert_eq!(ping.world.moved(), [("frames_down", 1), ("ping_down", 1)]);
    }
}

#[test]
fn echo_reply_has_a_valid_checksum() {
    for (guest, remote) in BOTH {
        let mut ping = Pinger::new();
        ping.send(guest, remote, &REQUEST);
        ping.world.host.queue_reply(0, remote, 1, b"hello");
        ping.event(0, READABLE);
        let (_, frame) = &ping.world.link.frames[0];
        let (number, message, sum) = match guest {
            GUEST => (protocol::ICMP, &frame[34..], Sum::new()),
            _ => {
                let (from, to) = (remote.parse().unwrap(), guest.parse().unwrap());
                (
                    protocol::ICMPV6,
                    &frame[54..],
                    Sum::pseudo(from, to, protocol::ICMPV6, frame.len() - 54),
                )
            }
        };
        assert_eq!(sum.add(message).finish(), 0, "protocol {number}");
    }
}

#[test]
fn each_echo_id_has_its_own_socket() {
    let mut ping = Pinger::new();
    ping.send(GUEST, REMOTE, &REQUEST);
    ping.send(GUEST, "192.0.2.2", &Request { seq: 2, ..REQUEST });
    ping.send(GUEST, REMOTE, &Request { ident: 8, ..REQUEST });
    assert_eq!(
        ping.world.calls(),
        [
            "0: ping v4",
            "0: ping 192.0.2.1 seq 1 hop 63 5",
            "0: ping 192.0.2.2 seq 2 hop 63 5",
            "1: ping v4",
            "1: ping 192.0.2.1 seq 1 hop 63 5",
        ]
    );
}

#[test]
fn echo_id_expires_after_a_minute() {
    let mut ping = Pinger::new();
    ping.send(GUEST, REMOTE, &REQUEST);
    ping.wait(59);
    ping.world.host.queue_reply(0, REMOTE, 1, b"hello");
    ping.event(0, READABLE);
    ping.wait(59);
    ping.world.forget();
    assert_eq!(ping.icmp.len(), 1);
    ping.wait(2);
    assert_eq!(ping.world.calls(), ["0: close"]);
    assert_eq!((ping.icmp.len(), ping.world.net.flows), (0, 0));
    assert_eq!(ping.world.net.timers.next(), None);
}

#[test]
fn idlest_echo_id_is_evicted_for_a_new_one() {
    let mut ping = Pinger::new();
    ping.world.net.config.max_flows = 1;
    ping.send(GUEST, REMOTE, &REQUEST);
    ping.world.forget();
    ping.send(GUEST, REMOTE, &Request { ident: 8, ..REQUEST });
    assert_eq!(
        ping.world.calls(),
        ["0: close", "1: ping v4", "1: ping 192.0.2.1 seq 1 hop 63 5"]
    );
}

#[test]
fn echo_ids_are_limited_to_a_fourth_of_all() {
    let mut ping = Pinger::new();
    ping.world.net.config.max_flows = 100_000;
    for ident in 0..=16_384 {
        ping.send(GUEST, REMOTE, &Request { ident, ..REQUEST });
    }
    assert_eq!(ping.icmp.len(), 16_384);
    assert_eq!(ping.world.moved(), [("ping_up", 16_385), ("ping_evicted", 1)]);
    assert_eq!(ping.world.host.open_sockets(), 16_384);
}

#[test]
fn replies_renew_an_echo_id() {
    let mut ping = Pinger::new();
    ping.world.net.config.max_flows = 2;
    ping.send(GUEST, REMOTE, &REQUEST);
    ping.send(GUEST, REMOTE, &Request { ident: 8, ..REQUEST });
    ping.world.host.queue_reply(0, REMOTE, 1, b"hello");
    ping.event(0, READABLE);
    ping.world.forget();
    ping.send(GUEST, REMOTE, &Request { ident: 9, ..REQUEST });
    assert_eq!(ping.world.calls()[0], "1: close");
}

#[test]
fn large_echo_reply_is_sent_in_fragments() {
    for (guest, remote) in BOTH {
        let mut ping = Pinger::new();
        let data = vec![1; 65_507];
        ping.send(
            guest,
            remote,
            &Request {
                data: &data,
                ..REQUEST
            },
        );
        assert_eq!(
            ping.world.calls()[1],
            format!("0: ping {remote} seq 1 hop 63 65507")
        );
        ping.world.forget();
        ping.world.host.queue_reply(0, remote, 1, &data);
        ping.event(0, READABLE);
        let frames = if guest == GUEST { 45 } else { 46 };
        assert_eq!(ping.world.down().len(), frames);
        assert_eq!(
            ping.world.moved(),
            [("frames_down", frames as u64), ("ping_down", 1)]
        );
    }
}

#[test]
fn policy_and_hop_limit_are_checked_before_a_socket_opens() {
    let mut ping = Pinger::new();
    ping.send(GUEST, "10.0.2.99", &REQUEST);
    ping.send(
        GUEST,
        REMOTE,
        &Request {
            hop_limit: 1,
            ..REQUEST
        },
    );
    ping.send(
        GUEST_V6,
        REMOTE_V6,
        &Request {
            hop_limit: 1,
            ..REQUEST
        },
    );
    assert_eq!(ping.world.calls(), [""; 0]);
    assert_eq!(
        ping.world.down(),
        [
            "icmp 10.0.2.2 > 10.0.2.15 3/1 0 about 10.0.2.15 > 10.0.2.99 id 7 seq 1",
            "icmp 10.0.2.2 > 10.0.2.15 11/0 0 about 10.0.2.15 > 192.0.2.1 id 7 seq 1",
            "icmp fd70:6f6e:746f::2 > fd70:6f6e:746f::15 3/0 0 about fd70:6f6e:746f::15 > 2001:db8::1 id 7 seq 1",
        ]
    );
    assert_eq!(
        ping.world.moved(),
        [("frames_down", 3), ("policy_refused", 1), ("icmp_errors_down", 3)]
    );
}

#[test]
fn other_icmp_messages_are_dropped() {
    let mut ping = Pinger::new();
    for kind in [0, 3, 13] {
        let request = Request {
            kind: Some(kind),
            ..REQUEST
        };
        ping.send(GUEST, REMOTE, &request);
        assert_eq!(ping.world.moved(), [("unknown_protocol", 1)]);
    }
    assert_eq!((ping.world.calls(), ping.world.down()), (vec![], vec![]));
}

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
fn reply_of_a_rewritten_destination_has_the_original_address() {
    let mut ping = Pinger::new();
    ping.world.net.policy.host_loopback = vec!["192.0.2.77".parse().unwrap()];
    ping.send(
        GUEST,
        "192.0.2.77",
        &Request {
            hop_limit: 1,
            ..REQUEST
        },
    );
    assert_eq!(ping.world.calls()[1], "0: ping 127.0.0.1 seq 1 hop 1 5");
    ping.world.host.queue_reply(0, "127.0.0.1", 1, b"hello");
    // A reply from a remote address to which the guest cannot have sent is dropped.
    ping.world.host.queue_reply(0, "127.0.0.9", 1, b"hello");
    ping.event(0, READABLE);
    assert_eq!(
        ping.world.down(),
        ["echo 192.0.2.77 > 10.0.2.15 id 7 seq 1 hop 57 5"]
    );
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

#[test]
fn full_link_parks_the_id_and_quantum_ends_a_turn() {
    let mut ping = Pinger::new();
    ping.send(GUEST, REMOTE, &REQUEST);
    ping.world.forget();
    for _ in 0..130 {
        ping.world.host.queue_reply(0, REMOTE, 1, b"hello");
    }
    let flow = ping.world.host.flow(0);
    ping.world.link.room = 1;
    ping.event(0, READABLE);
    assert_eq!(ping.world.net.parked, [flow]);
    assert_eq!(ping.world.moved(), [("frames_down", 1), ("ping_down", 1)]);

    ping.world.link.room = usize::MAX;
    ping.icmp.handle_ready(flow, &mut ping.world.ctx());
    assert_eq!(ping.world.net.ready, [flow]);
    assert_eq!(ping.world.moved(), [("frames_down", 128), ("ping_down", 128)]);
    // The flow is in the list of ready flows.
    ping.event(0, READABLE);
    assert_eq!(ping.world.moved(), []);
    ping.icmp.handle_ready(flow, &mut ping.world.ctx());
    assert_eq!(ping.world.moved(), [("frames_down", 1), ("ping_down", 1)]);
}

#[test]
fn reply_without_memory_is_read_in_another_turn() {
    let mut ping = Pinger::new();
    ping.send(GUEST, REMOTE, &REQUEST);
    ping.world.forget();
    ping.world.host.queue_failure(0, Failure::Exhausted);
    ping.world.host.queue_reply(0, REMOTE, 1, b"hello");
    ping.event(0, READABLE);
    assert_eq!(ping.world.moved(), []);
    let flow = ping.world.net.ready.pop_front().unwrap();
    ping.icmp.handle_ready(flow, &mut ping.world.ctx());
    assert_eq!(ping.world.moved(), [("frames_down", 1), ("ping_down", 1)]);
    assert!(ping.world.net.ready.is_empty());
}

#[test]
fn event_of_an_earlier_generation_is_ignored() {
    let mut ping = Pinger::new();
    ping.send(GUEST, REMOTE, &REQUEST);
    let flow = ping.world.host.flow(0);
    ping.icmp.close(flow, &mut ping.world.ctx());
    ping.send(GUEST, REMOTE, &REQUEST);
    ping.world.host.queue_reply(1, REMOTE, 1, b"hello");
    ping.world.forget();
    ping.icmp.handle_socket(flow, READABLE, &mut ping.world.ctx());
    ping.icmp.handle_ready(flow, &mut ping.world.ctx());
    ping.icmp.handle_timeout(flow, &mut ping.world.ctx());
    ping.icmp.close(flow, &mut ping.world.ctx());
    assert_eq!((ping.world.calls(), ping.world.down()), (vec![], vec![]));
    assert_eq!(ping.icmp.len(), 1);
}

#[test]
fn reply_that_new_rules_refuse_is_dropped() {
    let mut ping = Pinger::new();
    ping.send(GUEST, REMOTE, &REQUEST);
    ping.world.forget();
    ping.world
        .net
        .policy
        .egress
        .set(&["deny 192.0.2.1".parse().unwrap()]);
    ping.world.host.queue_reply(0, REMOTE, 1, b"hello");
    ping.event(0, READABLE);
    assert_eq!(ping.world.down(), [""; 0]);
}

/// A raw socket also receives the replies to requests of the host's other programs.
#[test]
fn reply_from_an_address_without_a_request_is_dropped() {
    for ((guest, remote), other) in BOTH.into_iter().zip(["198.51.100.9", "2001:db8:bad::9"]) {
        let mut ping = Pinger::new();
        ping.send(guest, remote, &REQUEST);
        ping.send(guest, other, &Request { ident: 8, ..REQUEST });
        ping.world.forget();
        ping.world.host.queue_reply(0, other, 1, b"hello");
        ping.event(0, READABLE);
        assert_eq!(ping.world.down(), [""; 0], "{other} was sent to by another id");
        ping.world.host.queue_reply(0, remote, 1, b"hello");
        ping.event(0, READABLE);
        assert_eq!(ping.world.down().len(), 1);
    }
}

#[test]
fn replies_from_each_address_of_an_id_are_accepted_for_60_seconds() {
    let mut ping = Pinger::new();
    let others: Vec<_> = (1..200).map(|nth| format!("198.51.100.{nth}")).collect();
    for other in &others {
        ping.send(GUEST, other, &REQUEST);
    }
    ping.world.wait(60);
    for other in &others {
        ping.world.forget();
        ping.world.host.queue_reply(0, other, 1, b"hello");
        ping.event(0, READABLE);
        assert_eq!(ping.world.down().len(), 1, "{other}");
    }
    // Replies keep the echo id open, but do not extend the time of the addresses.
    ping.world.wait(1);
    ping.world.forget();
    ping.world.host.queue_reply(0, &others[0], 1, b"hello");
    ping.event(0, READABLE);
    assert_eq!(ping.world.down(), [""; 0]);
}

#[test]
fn remembered_addresses_of_requests_are_bounded() {
    let mut ping = Pinger::new();
    for nth in 0..MOST_ADDRESSES + 10 {
        let [.., a, b, c] = nth.to_be_bytes();
        ping.send(GUEST, &format!("100.{a}.{b}.{c}"), &REQUEST);
        ping.world.forget();
    }
    assert_eq!(ping.icmp.requested.len(), MOST_ADDRESSES);
}

#[test]
fn echo_replies_wait_while_the_bandwidth_is_used_up() {
    let mut ping = Pinger::new();
    let limit = core::num::NonZeroU64::new(64_000).map(crate::Bandwidth::new);
    ping.world.net.throttle = crate::bandwidth::Throttle::new(limit);
    ping.send(GUEST, REMOTE, &REQUEST);
    ping.world.forget();
    for seq in [1, 2] {
        ping.world.host.queue_reply(0, REMOTE, seq, &[0; 1_000]);
    }
    ping.event(0, READABLE);
    assert_eq!(ping.world.down().len(), 1);
    assert_eq!(
        ping.world.moved(),
        [("frames_down", 1), ("held_back", 1), ("ping_down", 1)]
    );
    ping.world.wait(1);
    let flow = ping.world.net.parked.pop().unwrap();
    ping.icmp.handle_ready(flow, &mut ping.world.ctx());
    assert_eq!(ping.world.down().len(), 1);
}

#[test]
fn events_of_an_echo_id() {
    let mut ping = Pinger::new();
    let events = EventRecorder::of(&mut ping.world.net);
    for to in [REMOTE, REMOTE, "198.51.100.1", REMOTE] {
        ping.send(GUEST, to, &REQUEST);
    }
    ping.send(GUEST, "10.0.2.99", &REQUEST);
    ping.send(GUEST_V6, REMOTE_V6, &REQUEST);
    assert_eq!(
        events.take(),
        [
            "opened: 10.0.2.15:7 > 192.0.2.1:0",
            "peer: 10.0.2.15:7 > 198.51.100.1:0",
            "refused unassigned: 10.0.2.15:7 > 10.0.2.99:0",
            "opened: [fd70:6f6e:746f::15]:7 > [2001:db8::1]:0",
        ]
    );
    ping.wait(61);
    let mut closed = events.take();
    closed.sort();
    assert_eq!(
        closed,
        [
            "closed timeout 20 0: 10.0.2.15:7 > 192.0.2.1:0",
            "closed timeout 5 0: [fd70:6f6e:746f::15]:7 > [2001:db8::1]:0",
        ]
    );
    ping.world.host.opens.push_back(Failure::Prohibited);
    ping.send(GUEST, REMOTE, &REQUEST);
    assert_eq!(events.take(), ["refused host-error: 10.0.2.15:7 > 192.0.2.1:0"]);
}
