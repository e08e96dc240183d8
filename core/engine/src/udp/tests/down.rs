use super::*;
use crate::Failure;

#[test]
fn reply_is_sent_to_the_guest() {
    for (guest, remote) in [(GUEST, "192.0.2.1:7"), (GUEST_V6, "[2001:db8::1]:7")] {
        let mut nat = Nat::new();
        nat.send(guest, remote);
        nat.world.forget();
        nat.arrive(0, remote);
        assert_eq!(nat.world.down(), [format!("udp {remote} > {guest} hop 57 4")]);
        assert_eq!(nat.world.moved(), [("frames_down", 1), ("udp_down", 1)]);
    }
}

#[test]
fn filter_decides_which_senders_are_accepted() {
    let same_address = "192.0.2.1:9";
    let stranger = "198.51.100.1:7";
    for (filter, admitted) in [
        (UdpFilter::Endpoint, &[same_address, stranger][..]),
        (UdpFilter::Address, &[same_address]),
        (UdpFilter::AddressPort, &[]),
    ] {
        let mut nat = Nat::with_filter(filter);
        nat.send(GUEST, "192.0.2.1:7");
        nat.world.forget();
        for sender in [same_address, stranger] {
            nat.arrive(0, sender);
            if admitted.contains(&sender) {
                assert_eq!(nat.world.down(), [format!("udp {sender} > {GUEST} hop 57 4")]);
                assert_eq!(nat.world.moved(), [("frames_down", 1), ("udp_down", 1)]);
            } else {
                assert_eq!(nat.world.down(), [""; 0]);
                assert_eq!(nat.world.moved(), [("udp_unsolicited", 1)]);
            }
        }
    }
}

/// With `--udp-filter endpoint`, a sender is refused to which the policy would refuse the guest's replies.
#[test]
fn stranger_that_policy_refuses_is_not_admitted() {
    for rule in [Some("deny 198.51.100.0/24"), Some("allow 192.0.2.1"), None] {
        let mut nat = Nat::with_filter(UdpFilter::Endpoint);
        match rule {
            Some(rule) => nat.world.net.policy.egress.set(&[rule.parse().unwrap()]),
            None => nat.world.net.policy.owned = ["198.51.100.1/32".parse().unwrap()].into_iter().collect(),
        }
        nat.send(GUEST, "192.0.2.1:7");
        nat.world.forget();
        nat.arrive(0, "198.51.100.1:7");
        assert_eq!(nat.world.moved(), [("udp_unsolicited", 1)], "{rule:?}");
        nat.world.forget();
        nat.send(GUEST, "198.51.100.1:7");
        assert_eq!(nat.world.calls(), [""; 0], "{rule:?}");
    }
}

/// The egress rules may change after the sender was accepted.
#[test]
fn admitted_stranger_is_subject_to_later_rules() {
    let mut nat = Nat::with_filter(UdpFilter::Endpoint);
    nat.send(GUEST, "192.0.2.1:7");
    nat.arrive(0, "198.51.100.1:7");
    nat.world
        .net
        .policy
        .egress
        .set(&["deny 198.51.100.1".parse().unwrap()]);
    nat.world.forget();
    nat.send(GUEST, "198.51.100.1:7");
    assert_eq!(nat.world.calls(), [""; 0]);
}

#[test]
fn filter_entry_expires_after_two_minutes() {
    let mut nat = Nat::new();
    nat.send(GUEST, "192.0.2.1:7");
    nat.arrive(0, "192.0.2.1:7");
    nat.wait(60);
    nat.send(GUEST, "198.51.100.1:7");
    nat.wait(61);
    nat.world.forget();
    nat.arrive(0, "192.0.2.1:7");
    assert_eq!(nat.world.moved(), [("udp_unsolicited", 1)]);
    nat.arrive(0, "198.51.100.1:7");
    assert_eq!(nat.world.moved(), [("frames_down", 1), ("udp_down", 1)]);
}

/// RFC 4787 REQ-6: inbound traffic renews the peer, both the first one of an endpoint and those in the pool.
#[test]
fn peer_that_keeps_sending_does_not_expire() {
    let mut nat = Nat::new();
    let peers = ["192.0.2.1:7", "198.51.100.1:7"];
    for peer in peers {
        nat.send(GUEST, peer);
        nat.arrive(0, peer);
    }
    for _ in 0..5 {
        nat.wait(100);
        for peer in peers {
            nat.world.forget();
            nat.arrive(0, peer);
            assert_eq!(nat.world.moved(), [("frames_down", 1), ("udp_down", 1)]);
        }
    }
    nat.send(GUEST, "203.0.113.1:7");
    nat.wait(119);
    nat.arrive(0, "203.0.113.1:7");
    nat.wait(2);
    for peer in peers {
        nat.world.forget();
        nat.arrive(0, peer);
        assert_eq!(nat.world.moved(), [("udp_unsolicited", 1)]);
    }
}

#[test]
fn coalesced_datagrams_are_sent_as_one_super_frame() {
    let mut nat = Nat::new();
    nat.send(GUEST, "192.0.2.1:7");
    nat.world.forget();
    nat.world.host.queue(0, "192.0.2.1:7", None, &[1; 2_500], 1_000);
    nat.event(0, READABLE);
    assert_eq!(
        nat.world.down(),
        [format!("udp 192.0.2.1:7 > {GUEST} hop 57 2500 by 1000")]
    );
    assert_eq!(nat.world.moved(), [("frames_down", 1), ("udp_down", 3)]);
}

#[test]
fn coalesced_datagrams_are_split_for_a_link_without_uso() {
    let mut nat = Nat::new();
    nat.world.link.limits.uso = false;
    nat.send(GUEST, "192.0.2.1:7");
    nat.world.forget();
    nat.world.host.queue(0, "192.0.2.1:7", None, &[1; 2_500], 1_000);
    nat.event(0, READABLE);
    let line = |len| format!("udp 192.0.2.1:7 > {GUEST} hop 57 {len}");
    assert_eq!(nat.world.down(), [line(1_000), line(1_000), line(500)]);
    assert_eq!(nat.world.moved(), [("frames_down", 3), ("udp_down", 3)]);
}

#[test]
fn datagram_larger_than_the_mtu_is_fragmented() {
    for uso in [true, false] {
        let mut nat = Nat::new();
        nat.world.link.limits.uso = uso;
        nat.send(GUEST, "192.0.2.1:7");
        nat.world.forget();
        nat.world.host.queue(0, "192.0.2.1:7", None, &[1; 4_000], 2_000);
        nat.event(0, READABLE);
        let datagram = ["fragment 0..1480+", "fragment 1480..528"];
        assert_eq!(nat.world.down(), [datagram, datagram].concat());
        assert_eq!(nat.world.moved(), [("frames_down", 4), ("udp_down", 2)]);
    }
}

#[test]
fn link_with_little_room_sends_datagrams() {
    let mut nat = Nat::new();
    nat.world.link.limits.max_gso = 48_000;
    nat.send(GUEST, "192.0.2.1:7");
    nat.world.forget();
    nat.world.host.queue(0, "192.0.2.1:7", None, &[1; 1_000], 500);
    nat.event(0, READABLE);
    let line = format!("udp 192.0.2.1:7 > {GUEST} hop 57 500");
    assert_eq!(nat.world.down(), [line.clone(), line]);
}

#[test]
fn longest_datagrams_are_sent() {
    for (guest, remote, len, frames) in [
        (GUEST, "192.0.2.1:7", 65_507, 45),
        (GUEST_V6, "[2001:db8::1]:7", 65_527, 46),
    ] {
        let mut nat = Nat::new();
        nat.send(guest, remote);
        nat.world.forget();
        nat.world.host.queue(0, remote, None, &vec![1; len], len);
        nat.event(0, READABLE);
        assert_eq!(nat.world.down().len(), frames);
        assert_eq!(
            nat.world.moved(),
            [("frames_down", frames as u64), ("udp_down", 1)]
        );
    }
}

#[test]
fn empty_datagrams_are_sent() {
    for uso in [true, false] {
        let mut nat = Nat::new();
        nat.world.link.limits.uso = uso;
        nat.send(GUEST, "192.0.2.1:7");
        nat.world.forget();
        nat.world.host.queue(0, "192.0.2.1:7", None, b"", 0);
        nat.event(0, READABLE);
        assert_eq!(nat.world.down(), [format!("udp 192.0.2.1:7 > {GUEST} hop 57 0")]);
        assert_eq!(nat.world.moved(), [("frames_down", 1), ("udp_down", 1)]);
    }
}

#[test]
fn flow_stops_at_its_quantum() {
    let mut nat = Nat::new();
    nat.send(GUEST, "192.0.2.1:7");
    for _ in 0..100 {
        nat.world.host.queue(0, "192.0.2.1:7", None, &[0; 1_024], 1_024);
    }
    nat.world.forget();
    nat.event(0, READABLE);
    assert_eq!(nat.world.down().len(), 64);
    let flow = nat.world.host.flow(0);
    assert_eq!(nat.world.net.ready, [flow]);
    // Another event has no effect, because the flow is in the list of ready flows.
    nat.event(0, READABLE);
    assert_eq!((nat.world.down().len(), nat.world.net.ready.len()), (0, 1));
    nat.world.net.ready.clear();
    nat.ready(flow);
    assert_eq!(nat.world.down().len(), 36);
    assert!(nat.world.net.ready.is_empty());
}

#[test]
fn full_link_parks_the_flow() {
    for uso in [true, false] {
        let mut nat = Nat::new();
        nat.world.link.limits.uso = uso;
        nat.send(GUEST, "192.0.2.1:7");
        for _ in 0..3 {
            nat.world.host.queue(0, "192.0.2.1:7", None, b"data", 4);
        }
        nat.world.forget();
        nat.world.link.room = 1;
        nat.event(0, READABLE);
        let flow = nat.world.host.flow(0);
        assert_eq!(nat.world.moved(), [("frames_down", 1), ("udp_down", 1)]);
        assert_eq!(nat.world.net.parked, [flow]);
        nat.world.net.parked.clear();
        nat.world.link.room = 5;
        nat.ready(flow);
        assert_eq!(nat.world.moved(), [("frames_down", 2), ("udp_down", 2)]);
        assert!(nat.world.net.parked.is_empty());
    }
}

#[test]
fn reply_of_the_hosts_loopback_is_from_the_gateway() {
    for (guest, written, remote) in [
        (GUEST, "10.0.2.2:7", "127.0.0.1:7"),
        (GUEST_V6, "[fd70:6f6e:746f::2]:7", "[::1]:7"),
    ] {
        let mut nat = Nat::new();
        let gateway = addr(written).ip();
        nat.world.net.policy.host_loopback = vec![gateway];
        nat.burst(&[Sent {
            hop_limit: 1,
            ..Sent::new(guest, written, b"hello")
        }]);
        assert_eq!(nat.world.calls()[1], format!("0: > {remote} hop 1 5"));
        nat.arrive(0, remote);
        assert_eq!(nat.world.down(), [format!("udp {written} > {guest} hop 57 4")]);
    }
}

#[test]
fn socket_error_does_not_stop_reading() {
    let mut nat = Nat::new();
    nat.send(GUEST, "192.0.2.1:7");
    nat.world.forget();
    nat.world.host.queue_failure(0, Failure::Refused);
    nat.arrive(0, "192.0.2.1:7");
    assert_eq!(nat.world.moved(), [("frames_down", 1), ("udp_down", 1)]);
    // An error that persists does not keep the flow in the list of ready flows.
    nat.world.host.queue_failure(0, Failure::Invalid);
    nat.arrive(0, "192.0.2.1:7");
    assert_eq!(nat.world.moved(), []);
    assert!(nat.world.net.ready.is_empty());
}

#[test]
fn datagram_without_memory_is_read_in_another_turn() {
    let mut nat = Nat::new();
    nat.send(GUEST, "192.0.2.1:7");
    nat.world.forget();
    nat.world.host.queue_failure(0, Failure::Exhausted);
    nat.arrive(0, "192.0.2.1:7");
    assert_eq!(nat.world.moved(), []);
    let flow = nat.world.net.ready.pop_front().unwrap();
    nat.ready(flow);
    assert_eq!(nat.world.moved(), [("frames_down", 1), ("udp_down", 1)]);
    assert!(nat.world.net.ready.is_empty());
}

#[test]
fn mtu_includes_headers() {
    for (guest, remote, most) in [
        (GUEST, "192.0.2.1:7", 1_472),
        (GUEST_V6, "[2001:db8::1]:7", 1_452),
    ] {
        for uso in [true, false] {
            for (len, frames) in [(most, 1), (most + 1, 2)] {
                let mut nat = Nat::new();
                nat.world.link.limits.uso = uso;
                nat.send(guest, remote);
                nat.world.host.queue(0, remote, None, &vec![1; len], len);
                nat.event(0, READABLE);
                assert_eq!(nat.world.down().len(), frames, "{len} bytes to {guest}");
            }
        }
    }
}

#[test]
fn coalesced_datagrams_beyond_max_gso_are_split() {
    let mut nat = Nat::new();
    nat.world.link.limits.max_gso = 4_000;
    nat.send(GUEST, "192.0.2.1:7");
    nat.world.forget();
    nat.world.host.queue(0, "192.0.2.1:7", None, &[1; 5_000], 1_000);
    nat.event(0, READABLE);
    assert_eq!(nat.world.moved(), [("frames_down", 5), ("udp_down", 5)]);
}
