//! Events of UDP endpoints.

use super::*;
use crate::config::{Protocol, Published};
use crate::egress::Egress;
use crate::test_world::EventRecorder;

#[test]
fn first_destination_opens_and_further_ones_are_peers() {
    let mut nat = Nat::with_filter(UdpFilter::AddressPort);
    let events = EventRecorder::of(&mut nat.world.net);
    for to in [
        "192.0.2.1:7",
        "192.0.2.1:7",
        "192.0.2.1:8",
        "198.51.100.1:7",
        "192.0.2.1:7",
    ] {
        nat.send(GUEST, to);
    }
    assert_eq!(
        events.take(),
        [
            "opened: 10.0.2.15:4000 > 192.0.2.1:7",
            "peer: 10.0.2.15:4000 > 192.0.2.1:8",
            "peer: 10.0.2.15:4000 > 198.51.100.1:7",
        ]
    );
    nat.arrive(0, "192.0.2.1:7");
    nat.wait(121);
    assert_eq!(
        events.take(),
        ["closed timeout 25 4: 10.0.2.15:4000 > 192.0.2.1:7"]
    );
}

#[test]
fn refused_datagrams_and_deciding_rules_are_reported() {
    let mut nat = Nat::new();
    let events = EventRecorder::of(&mut nat.world.net);
    nat.world.net.policy.egress = Egress::new(&["allow 192.0.2.0/24".parse().unwrap()]);
    nat.send(GUEST, "192.0.2.1:7");
    nat.send(GUEST, "192.0.2.1:7");
    nat.send(GUEST, "198.51.100.1:7");
    nat.send(GUEST_V6, "[::1]:7");
    assert_eq!(
        events.take(),
        [
            "opened: 10.0.2.15:4000 > 192.0.2.1:7",
            "decided Rule(0): 10.0.2.15:4000 > 192.0.2.1:7",
            "refused unlisted: 10.0.2.15:4000 > 198.51.100.1:7",
            "refused address-class: [fd70:6f6e:746f::15]:4000 > [::1]:7",
        ]
    );
}

#[test]
fn evicted_endpoints_and_limits_are_reported() {
    let mut nat = Nat::new();
    let events = EventRecorder::of(&mut nat.world.net);
    nat.world.net.config.max_flows = 1;
    nat.send(GUEST, "192.0.2.1:7");
    nat.send("10.0.2.15:4001", "192.0.2.1:7");
    assert_eq!(
        events.take(),
        [
            "opened: 10.0.2.15:4000 > 192.0.2.1:7",
            "closed evicted 5 0: 10.0.2.15:4000 > 192.0.2.1:7",
            "opened: 10.0.2.15:4001 > 192.0.2.1:7",
        ]
    );
    nat.udp.close_all(&mut nat.world.ctx());
    assert_eq!(
        events.take(),
        ["closed guest-gone 5 0: 10.0.2.15:4001 > 192.0.2.1:7"]
    );
    nat.world.net.config.max_flows = 0;
    nat.send(GUEST, "192.0.2.1:7");
    assert_eq!(events.take(), ["refused limit: 10.0.2.15:4000 > 192.0.2.1:7"]);
}

#[test]
fn clients_of_a_published_port_are_peers() {
    let mut nat = Nat::new();
    let events = EventRecorder::of(&mut nat.world.net);
    let port = Published::new(Protocol::Udp, addr("0.0.0.0:5353"), 53);
    nat.world.net.config.published = vec![port];
    nat.udp.publish(0, port, &mut nat.world.ctx()).unwrap();
    nat.arrive(0, "198.51.100.1:9");
    nat.arrive(0, "198.51.100.1:9");
    nat.udp.unpublish(0, port, &mut nat.world.ctx());
    assert_eq!(
        events.take(),
        [
            "opened: 10.0.2.15:53 < ",
            "peer: 10.0.2.15:53 < 198.51.100.1:9",
            "closed port-changed 0 8: 10.0.2.15:53 < 198.51.100.1:9",
        ]
    );
}
