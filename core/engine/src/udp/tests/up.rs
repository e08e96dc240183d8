use pontoon_wire::vnet::Segmentation;

use super::*;
use crate::Failure;
use crate::udp::UdpEndpoint;

#[test]
fn first_datagram_opens_a_socket() {
    for (guest, remote, family) in [(GUEST, "192.0.2.1:7", "v4"), (GUEST_V6, "[2001:db8::1]:7", "v6")] {
        let mut nat = Nat::new();
        nat.send(guest, remote);
        assert_eq!(
            nat.world.calls(),
            [format!("0: udp {family}"), format!("0: > {remote} hop 63 5")]
        );
        assert_eq!(nat.world.down(), [""; 0]);
        assert_eq!(nat.world.moved(), [("udp_up", 1)]);
        assert_eq!((nat.udp.len(), nat.world.net.flows), (1, 1));
    }
}

#[test]
fn mapping_is_independent_of_the_peer() {
    let mut nat = Nat::new();
    nat.send(GUEST, "192.0.2.1:3478");
    nat.send(GUEST, "198.51.100.1:3478");
    nat.send("10.0.2.15:4001", "192.0.2.1:3478");
    assert_eq!(
        nat.world.calls(),
        [
            "0: udp v4",
            "0: > 192.0.2.1:3478 hop 63 5",
            "0: > 198.51.100.1:3478 hop 63 5",
            "1: udp v4",
            "1: > 192.0.2.1:3478 hop 63 5",
        ]
    );
}

#[test]
fn equal_consecutive_datagrams_are_sent_as_one_batch() {
    let mut nat = Nat::new();
    let one = Sent::new(GUEST, "192.0.2.1:7", &[0; 100]);
    let short = Sent::new(GUEST, "192.0.2.1:7", &[0; 30]);
    let mut burst = vec![one; 100];
    burst.extend([short.clone(), short]);
    nat.burst(&burst);
    assert_eq!(
        nat.world.calls(),
        [
            "0: udp v4",
            "0: > 192.0.2.1:7 hop 63 6400 by 100",
            // The short datagram ends the batch.
            "0: > 192.0.2.1:7 hop 63 3630 by 100",
            "0: > 192.0.2.1:7 hop 63 30",
        ]
    );
    assert_eq!(nat.world.moved(), [("udp_up", 102), ("udp_batches_up", 2)]);
}

#[test]
fn batch_is_limited_to_64_kib() {
    let mut nat = Nat::new();
    nat.burst(&vec![Sent::new(GUEST, "192.0.2.1:7", &[0; 1_400]); 64]);
    assert_eq!(
        nat.world.calls(),
        [
            "0: udp v4",
            "0: > 192.0.2.1:7 hop 63 64400 by 1400",
            "0: > 192.0.2.1:7 hop 63 25200 by 1400"
        ]
    );
}

#[test]
fn datagrams_with_different_headers_are_sent_separately() {
    let mut nat = Nat::new();
    let one = Sent::new(GUEST, "192.0.2.1:7", b"hello");
    let mut burst = vec![one.clone(); 6];
    burst[1].traffic_class = 0xb8;
    burst[2].dont_fragment = false;
    burst[3].hop_limit = 32;
    burst[4].to.set_port(8);
    burst[5].from.set_port(4001);
    nat.burst(&burst);
    let sends = |calls: Vec<String>| calls.iter().filter(|call| call.contains('>')).count();
    assert_eq!(sends(nat.world.calls()), 6);
    assert_eq!(nat.world.moved(), [("udp_up", 6)]);
}

#[test]
fn empty_datagrams_are_sent_one_by_one() {
    let mut nat = Nat::new();
    nat.burst(&vec![Sent::new(GUEST, "192.0.2.1:7", b""); 2]);
    assert_eq!(
        nat.world.calls(),
        [
            "0: udp v4",
            "0: > 192.0.2.1:7 hop 63 0",
            "0: > 192.0.2.1:7 hop 63 0"
        ]
    );
    assert_eq!(nat.world.moved(), [("udp_up", 2)]);
}

#[test]
fn super_frame_is_sent_as_one_batch() {
    let mut nat = Nat::new();
    let mut sent = Sent::new(GUEST, "192.0.2.1:7", &[0; 250]);
    sent.segmentation = Segmentation::Udp { len: 100 };
    // The last datagram of the frame is short, so the next frame begins another batch.
    nat.burst(&[sent.clone(), sent]);
    assert_eq!(
        nat.world.calls(),
        [
            "0: udp v4",
            "0: > 192.0.2.1:7 hop 63 250 by 100",
            "0: > 192.0.2.1:7 hop 63 250 by 100",
        ]
    );
    assert_eq!(nat.world.moved(), [("udp_up", 6), ("udp_batches_up", 2)]);

    let mut many = Sent::new(GUEST, "192.0.2.1:7", &[0; 1_000]);
    many.segmentation = Segmentation::Udp { len: 10 };
    nat.burst(&[many]);
    assert_eq!(
        nat.world.calls(),
        [
            "0: > 192.0.2.1:7 hop 63 640 by 10",
            "0: > 192.0.2.1:7 hop 63 360 by 10"
        ]
    );
}

#[test]
fn datagram_in_many_slices_is_copied_into_one() {
    let mut nat = Nat::new();
    let sent = Sent::new(GUEST, "192.0.2.1:7", &[0; 65_507]);
    nat.burst_in_pieces(&[sent.clone(), sent], 100);
    assert_eq!(
        nat.world.calls(),
        [
            "0: udp v4",
            "0: > 192.0.2.1:7 hop 63 65507",
            "0: > 192.0.2.1:7 hop 63 65507"
        ]
    );
    assert_eq!(nat.world.moved(), [("udp_up", 2)]);
}

#[test]
fn unanswered_idle_and_dns_endpoints_expire() {
    for (to, answered, idle) in [
        ("192.0.2.1:53", true, 10),
        ("192.0.2.1:7", false, 30),
        ("192.0.2.1:7", true, 120),
    ] {
        let mut nat = Nat::new();
        nat.send(GUEST, to);
        if answered {
            nat.arrive(0, to);
        }
        // A datagram renews the idle time.
        nat.wait(idle - 1);
        nat.send(GUEST, to);
        nat.wait(idle - 1);
        assert_eq!(nat.udp.len(), 1);
        nat.world.forget();
        nat.wait(2);
        assert_eq!(nat.world.calls(), ["0: close"]);
        assert_eq!((nat.udp.len(), nat.world.net.flows), (0, 0));
        assert_eq!(nat.world.moved(), []);
        assert_eq!(nat.world.net.timers.next(), None);
    }
}

#[test]
fn idlest_endpoint_is_evicted_for_a_new_one() {
    let mut nat = Nat::new();
    nat.world.net.config.max_flows = 2;
    nat.send("10.0.2.15:1", "192.0.2.1:7");
    nat.send("10.0.2.15:2", "192.0.2.1:7");
    nat.send("10.0.2.15:1", "192.0.2.1:7");
    nat.world.forget();
    nat.send("10.0.2.15:3", "192.0.2.1:7");
    assert_eq!(
        nat.world.calls(),
        ["1: close", "2: udp v4", "2: > 192.0.2.1:7 hop 63 5"]
    );
    assert_eq!(nat.world.moved(), [("udp_up", 1), ("udp_evicted", 1)]);

    // Flows of other protocols use every slot.
    nat.world.net.flows = 10;
    nat.send("10.0.2.15:4", "192.0.2.1:7");
    assert_eq!(nat.world.moved(), [("flows_refused", 1), ("udp_evicted", 1)]);
}

#[test]
fn ports_are_limited_per_family() {
    let mut nat = Nat::new();
    nat.world.net.config.max_udp_ports = 2;
    nat.send("[fd70:6f6e:746f::15]:1", "[2001:db8::1]:7");
    for port in [1, 2, 1, 3] {
        nat.send(&format!("10.0.2.15:{port}"), "192.0.2.1:7");
    }
    // The idlest endpoint of all is of the other family, which has free ports.
    assert_eq!(nat.world.net.counters.udp_evicted, 1);
    let closed: Vec<String> = nat
        .world
        .calls()
        .into_iter()
        .filter(|call| call.ends_with("close"))
        .collect();
    assert_eq!(closed, ["2: close"]);
    assert_eq!(nat.udp.len(), 3);
    nat.wait(31);
    assert_eq!(nat.udp.len(), 0);
    nat.world.forget();
    for port in 1..=2 {
        nat.send(&format!("10.0.2.15:{port}"), "192.0.2.1:7");
    }
    assert_eq!(nat.world.moved(), [("udp_up", 2)]);
}

#[test]
fn published_ports_do_not_count_against_max_udp_ports() {
    let mut nat = super::published::published(&["0.0.0.0:5353"]);
    nat.world.net.config.max_udp_ports = 1;
    nat.send("10.0.2.15:1", "192.0.2.1:7");
    nat.send("10.0.2.15:2", "192.0.2.1:7");
    assert_eq!(nat.world.moved(), [("udp_up", 2), ("udp_evicted", 1)]);
    assert_eq!(nat.udp.len(), 2);
}

#[test]
fn idlest_endpoint_is_evicted_for_its_descriptor() {
    let mut nat = Nat::new();
    nat.send("10.0.2.15:1", "192.0.2.1:7");
    nat.world.forget();
    nat.world.host.opens.push_back(Failure::Exhausted);
    nat.send("10.0.2.15:2", "192.0.2.1:7");
    assert_eq!(
        nat.world.calls(),
        ["0: close", "1: udp v4", "1: > 192.0.2.1:7 hop 63 5"]
    );
    assert_eq!(
        nat.world.moved(),
        [("host_exhausted", 1), ("udp_up", 1), ("udp_evicted", 1)]
    );
}

#[test]
fn one_endpoint_has_five_thousand_peers() {
    let mut nat = Nat::new();
    let peer = |nth: usize| format!("198.18.{}.{}:{}", nth / 250, 1 + nth % 250, 1_000 + nth);
    for nth in 0..5_000 {
        nat.send(GUEST, &peer(nth));
    }
    nat.world.forget();
    for nth in (0..5_000).rev() {
        nat.arrive(0, &peer(nth));
    }
    assert_eq!(nat.world.down().len(), 5_000);
    assert_eq!(nat.world.moved(), [("frames_down", 5_000), ("udp_down", 5_000)]);
    assert_eq!((nat.udp.len(), nat.udp.pool.len()), (1, 4_999));
}

#[test]
fn full_pool_evicts_the_oldest_peer() {
    let mut nat = Nat::new();
    let peer = |nth: usize| {
        format!(
            "198.{}.{}.{}:7",
            18 + nth / 62_500,
            nth / 250 % 250,
            1 + nth % 250
        )
    };
    for nth in 0..super::super::peers::POOL + 2 {
        nat.send(GUEST, &peer(nth));
    }
    assert_eq!(nat.udp.pool.len(), super::super::peers::POOL);
    nat.world.forget();
    // The first peer is stored with the endpoint; the second was the oldest one in the pool.
    nat.arrive(0, &peer(1));
    assert_eq!(nat.world.moved(), [("udp_unsolicited", 1)]);
    nat.arrive(0, &peer(0));
    nat.arrive(0, &peer(2));
    assert_eq!(nat.world.moved(), [("frames_down", 2), ("udp_down", 2)]);

    // The third peer would be evicted next if it had not been used.
    nat.send(GUEST, &peer(2));
    nat.send(GUEST, "203.0.113.1:7");
    nat.world.forget();
    nat.arrive(0, &peer(2));
    assert_eq!(nat.world.moved(), [("frames_down", 1), ("udp_down", 1)]);
    nat.arrive(0, &peer(3));
    assert_eq!(nat.world.moved(), [("udp_unsolicited", 1)]);

    // Expired peers are removed two at a time.
    nat.world.wait(121);
    for nth in 0..1_000 {
        nat.send(GUEST, &format!("203.0.113.1:{}", 1 + nth));
        nat.send(GUEST, &format!("192.0.{}.{}:1", nth / 250, 1 + nth % 250));
    }
    assert!(nat.udp.pool.len() < super::super::peers::POOL - 900);
}

#[test]
fn single_peer_is_connected_under_address_and_port_filtering() {
    let mut nat = Nat::with_filter(UdpFilter::AddressPort);
    nat.send(GUEST, "192.0.2.1:7");
    nat.send(GUEST, "192.0.2.1:7");
    nat.arrive(0, "192.0.2.1:7");
    nat.world.forget();
    nat.send(GUEST, "192.0.2.1:7");
    nat.send(GUEST, "192.0.2.1:8");
    nat.send(GUEST, "192.0.2.1:7");
    assert_eq!(
        nat.world.calls(),
        [
            "0: connect 192.0.2.1:7",
            "0: > peer hop 63 5",
            "0: disconnect",
            "0: > 192.0.2.1:8 hop 63 5",
            "0: > 192.0.2.1:7 hop 63 5",
        ]
    );
}

#[test]
fn peer_that_replaces_an_expired_one_disconnects_the_socket() {
    let mut nat = Nat::with_filter(UdpFilter::AddressPort);
    nat.send(GUEST, "192.0.2.1:7");
    nat.arrive(0, "192.0.2.1:7");
    nat.send(GUEST, "192.0.2.1:7");
    nat.world.wait(100);
    nat.arrive(0, "192.0.2.1:7");
    nat.world.wait(100);
    nat.world.forget();
    nat.send(GUEST, "198.51.100.1:7");
    assert_eq!(
        nat.world.calls(),
        ["0: disconnect", "0: > 198.51.100.1:7 hop 63 5"]
    );
}

#[test]
fn destination_port_zero_is_malformed() {
    let mut nat = Nat::new();
    nat.send(GUEST, "192.0.2.1:0");
    assert_eq!(nat.world.moved(), [("malformed", 1)]);
    assert_eq!(nat.world.calls(), [""; 0]);
}

#[test]
fn event_of_an_earlier_generation_is_ignored() {
    let mut nat = Nat::new();
    nat.send(GUEST, "192.0.2.1:7");
    let flow = nat.world.host.flow(0);
    nat.udp.close(flow, &mut nat.world.ctx());
    nat.send(GUEST, "192.0.2.1:7");
    assert_eq!(nat.world.host.flow(1).index, flow.index);
    nat.world.host.queue(1, "192.0.2.1:7", None, b"data", 4);
    nat.world.forget();
    nat.udp.handle_socket(flow, READABLE, &mut nat.world.ctx());
    nat.udp.handle_timeout(flow, &mut nat.world.ctx());
    nat.udp.close(flow, &mut nat.world.ctx());
    nat.ready(flow);
    assert_eq!((nat.world.calls(), nat.world.moved()), (vec![], vec![]));
}

#[test]
fn endpoint_uses_at_most_240_bytes() {
    // The size includes that of a descriptor for the host socket.
    assert!(
        size_of::<UdpEndpoint<i32>>() <= 240,
        "{}",
        size_of::<UdpEndpoint<i32>>()
    );
}

#[test]
fn policy_is_checked_again_after_a_peer_expired() {
    let mut nat = Nat::new();
    nat.send(GUEST, "192.0.2.1:7");
    nat.arrive(0, "192.0.2.1:7");
    nat.wait(100);
    nat.send(GUEST, "198.51.100.1:7");
    nat.wait(21);
    nat.world.forget();
    nat.world.net.policy.owned = ["192.0.2.1/32".parse().unwrap()].into_iter().collect();
    nat.send(GUEST, "192.0.2.1:7");
    assert_eq!(nat.world.calls(), [""; 0]);
    assert_eq!(
        nat.world.moved(),
        [("frames_down", 1), ("policy_refused", 1), ("icmp_errors_down", 1)]
    );
}

#[test]
fn peer_whose_address_the_host_gains_is_removed() {
    for (owned, sent) in [("192.0.2.0/24", false), ("198.51.100.0/24", true)] {
        let mut nat = Nat::new();
        nat.send(GUEST, "192.0.2.1:7");
        nat.world.forget();
        nat.world.net.policy.owned = [owned.parse().unwrap()].into_iter().collect();
        nat.udp.disown(&nat.world.net.policy);
        nat.send(GUEST, "192.0.2.1:7");
        let calls = nat.world.calls();
        assert_eq!(!calls.is_empty(), sent, "{owned}: {calls:?}");
    }
}

#[test]
fn replies_renew_an_endpoint() {
    let mut nat = Nat::new();
    nat.world.net.config.max_flows = 2;
    nat.send("10.0.2.15:1", "192.0.2.1:7");
    nat.send("10.0.2.15:2", "192.0.2.1:7");
    nat.arrive(0, "192.0.2.1:7");
    nat.world.forget();
    nat.send("10.0.2.15:3", "192.0.2.1:7");
    assert_eq!(nat.world.calls()[0], "1: close");
}

#[test]
fn expired_first_peer_is_replaced() {
    let mut nat = Nat::new();
    nat.send(GUEST, "192.0.2.1:7");
    nat.arrive(0, "192.0.2.1:7");
    nat.wait(60);
    nat.send(GUEST, "198.51.100.1:7");
    assert_eq!(nat.udp.pool.len(), 1);
    nat.wait(61);
    nat.send(GUEST, "203.0.113.1:7");
    assert_eq!(nat.udp.pool.len(), 1);
    nat.send(GUEST, "192.0.2.1:7");
    assert_eq!(nat.udp.pool.len(), 2);
}

#[test]
fn frames_in_slices_are_gathered_up_to_the_limit() {
    let mut nat = Nat::new();
    // Frames of 100 slices each: a second frame exceeds the limit on slices.
    nat.burst_in_pieces(&vec![Sent::new(GUEST, "192.0.2.1:7", &[0; 1_000]); 2], 10);
    assert_eq!(
        nat.world.calls(),
        [
            "0: udp v4",
            "0: > 192.0.2.1:7 hop 63 1000",
            "0: > 192.0.2.1:7 hop 63 1000"
        ]
    );
}

/// Adds a forward from port 5000 of the gateway to port 6000 of the host's loopback.
fn forward(nat: &mut Nat) {
    nat.world.net.policy.forwards.add(crate::policy::GuestForward {
        protocol: crate::config::Protocol::Udp,
        from: addr("10.0.2.2:5000"),
        to: addr("127.0.0.1:6000"),
        count: 1,
    });
}

#[test]
fn forwarded_port_opens_no_other_port_of_the_loopback() {
    let mut nat = Nat::new();
    forward(&mut nat);
    nat.send("10.0.2.15:53", "10.0.2.2:5000");
    assert!(
        nat.world.calls().last().unwrap().contains("> 127.0.0.1:6000 "),
        "{:?}",
        nat.world.calls()
    );
    nat.world.forget();
    // The filter compares addresses only, but the peer of a forward represents one port.
    for port in [4999, 5001, 6000] {
        nat.send("10.0.2.15:53", &format!("10.0.2.2:{port}"));
    }
    assert_eq!(nat.world.calls(), Vec::<String>::new());
    assert_eq!(nat.world.net.counters.policy_refused, 3);
    nat.world.forget();
    nat.world.host.queue(0, "127.0.0.1:6000", None, b"data", 4);
    nat.event(0, READABLE);
    assert!(
        nat.world.down()[0].contains("10.0.2.2:5000"),
        "{:?}",
        nat.world.down()
    );
    nat.world.forget();
    nat.world.host.queue(0, "127.0.0.1:7000", None, b"data", 4);
    nat.event(0, READABLE);
    assert_eq!(nat.world.down(), Vec::<String>::new());
}

#[test]
fn forwarded_port_of_an_open_loopback_leads_to_its_own_port() {
    let mut nat = Nat::new();
    nat.world.net.policy.host_loopback = vec!["10.0.2.2".parse().unwrap()];
    nat.send("10.0.2.15:53", "10.0.2.2:5000");
    forward(&mut nat);
    for (written, remote) in [
        ("10.0.2.2:5000", "127.0.0.1:6000"),
        ("10.0.2.2:5001", "127.0.0.1:5001"),
        ("10.0.2.2:5000", "127.0.0.1:6000"),
    ] {
        nat.world.forget();
        nat.send("10.0.2.15:53", written);
        let calls = nat.world.calls();
        assert!(
            calls.last().unwrap().contains(&format!("> {remote} ")),
            "{calls:?}"
        );
    }
}
