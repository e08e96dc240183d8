use pontoon_wire::checksum::Sum;
use pontoon_wire::protocol;

use super::*;
use crate::Failure;
use crate::icmp::requested::MOST_ADDRESSES;

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
