use super::*;
use crate::Failure;
use crate::test_world::EventRecorder;

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
