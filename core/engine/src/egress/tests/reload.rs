//! Rules that change under running flows.

use super::door::Fate;
use super::*;
use crate::test_world::READABLE;

#[test]
fn connection_that_new_rules_deny_is_reset() {
    let mut door = Door::new(&[]);
    door.send_from(1, TCP, "192.0.2.1:80");
    door.send_from(2, TCP, "192.0.2.2:80");
    door.send_from(3, TCP, "[2001:db8::1]:80");
    door.moved();
    door.set_rules(&["deny 192.0.2.1", "deny 2001:db8::/32"]);
    assert_eq!(door.host.take_calls(), ["0: abort", "2: abort"]);
    assert_eq!(
        door.link.describe(),
        [
            "tcp 192.0.2.1:80 > 10.0.2.15:1 reset",
            "tcp [2001:db8::1]:80 > [fd70:6f6e:746f::15]:3 reset",
        ]
    );
    assert_eq!(door.moved(), [("frames_down", 2), ("policy_refused", 2)]);
    assert_eq!(door.engine.flows(), 1);
    door.set_rules(&["allow 192.0.2.2:443"]);
    assert_eq!(
        (door.host.take_calls(), door.engine.flows()),
        (vec!["1: abort".to_owned()], 0)
    );
}

#[test]
fn datagrams_of_peers_that_new_rules_deny_are_dropped() {
    let mut door = Door::new(&[]);
    for to in ["192.0.2.1:7", "192.0.2.2:7", "192.0.2.3:7"] {
        door.send(UDP, to);
    }
    door.set_rules(&["deny 192.0.2.1", "deny 192.0.2.3:7"]);
    let flow = door.host.flow(0);
    for from in ["192.0.2.1:7", "192.0.2.2:7"] {
        door.host.queue(0, from, None, b"data", 4);
    }
    door.engine
        .handle_socket(flow, READABLE, &mut door.link, &mut door.host, door.now);
    assert_eq!(
        door.link.describe(),
        ["udp 192.0.2.2:7 > 10.0.2.15:4000 hop 57 4"]
    );
    door.host.take_calls();
    assert!(matches!(door.send(UDP, "192.0.2.1:7"), Fate::Told(_)));
    assert!(matches!(door.send(UDP, "192.0.2.3:7"), Fate::Told(_)));
    assert!(matches!(door.send(UDP, "192.0.2.2:7"), Fate::Out(_)));
}

#[test]
fn rules_that_stay_keep_addresses_and_counts() {
    let mut door = Door::new(&["allow example.org", "deny 192.0.2.1"]);
    door.resolve("example.org", 1, |answer| {
        answer.address("example.org", 300, "198.51.100.7");
    });
    door.send_from(1, TCP, "198.51.100.7:80");
    door.send_from(1, TCP, "192.0.2.1:80");
    door.set_rules(&["deny 192.0.2.2", "deny 192.0.2.1", "allow example.org"]);
    assert_eq!(door.engine.flows(), 1);
    let counts = [("deny 192.0.2.1", 1), ("allow example.org", 1)];
    assert_eq!(door.counts(), counts.map(|(rule, hits)| (rule.to_owned(), hits)));
    assert!(matches!(door.send_from(2, TCP, "198.51.100.7:80"), Fate::Out(_)));
    // Forgotten with the rule.
    door.set_rules(&[]);
    door.set_rules(&["allow example.org"]);
    assert_eq!(door.host.take_calls(), ["1: abort", "2: abort"]);
    assert_eq!(door.link.describe().len(), 2);
    assert!(matches!(door.send_from(3, TCP, "198.51.100.7:80"), Fate::Told(_)));
}

#[test]
fn tcp_connections_to_the_forwarder_end_when_rules_name_domains() {
    let mut door = Door::new(&["deny 192.0.2.1"]);
    assert_eq!(
        door.send(TCP, "10.0.2.3:53"),
        Fate::Out(vec!["0: tcp 192.0.2.53:53".to_owned()])
    );
    door.set_rules(&["deny 192.0.2.2"]);
    assert_eq!(door.engine.flows(), 1);
    door.set_rules(&["deny ads.example"]);
    assert_eq!(
        (door.host.take_calls(), door.engine.flows()),
        (vec!["0: abort".to_owned()], 0)
    );
}
