//! Tests of flows that the user ends, by their id or by the rule that names their destination.

use super::fixture::Fate;
use super::*;

#[test]
fn flow_is_ended_by_its_id_once() {
    let mut fixture = Fixture::new(&[]);
    fixture.send_from(1, TCP, "192.0.2.1:80");
    fixture.send_from(2, TCP, "192.0.2.1:80");
    fixture.send(UDP, "192.0.2.1:7");
    fixture.send(ICMP, "192.0.2.1:0");
    fixture.host.take_calls();
    let ids = [0, 2, 3].map(|socket| fixture.host.flow(socket));
    assert_eq!([0, 2, 3].map(|socket| fixture.end_socket(socket)), [1, 1, 1]);
    assert_eq!(fixture.host.take_calls(), ["0: abort", "2: close", "3: close"]);
    assert_eq!(fixture.link.describe(), ["tcp 192.0.2.1:80 > 10.0.2.15:1 reset"]);
    assert_eq!(fixture.engine.flows(), 1);
    let moved = fixture.moved();
    assert!(
        moved.iter().all(|(name, _)| *name != "policy_refused"),
        "{moved:?}"
    );
    // The slots are used by other flows now.
    fixture.send_from(3, TCP, "192.0.2.1:80");
    fixture.send_from(3, UDP, "192.0.2.1:7");
    for id in ids {
        let (link, host) = (&mut fixture.link, &mut fixture.host);
        assert_eq!(fixture.engine.end_flow(id, link, host, fixture.now), 0);
    }
    assert_eq!(fixture.engine.flows(), 3);
}

#[test]
fn flows_are_ended_by_a_rule_that_names_their_destination() {
    let destinations = [
        (TCP, "192.0.2.1:80"),
        (TCP, "192.0.2.1:443"),
        (TCP, "192.0.2.2:443"),
        (TCP, "[64:ff9b::192.0.2.1]:443"),
        (UDP, "192.0.2.1:443"),
        (UDP, "192.0.2.2:7"),
        (ICMP, "192.0.2.1:0"),
    ];
    for (rule, ended) in [
        ("192.0.2.1", &[0, 1, 3, 4, 6][..]),
        ("192.0.2.1:443", &[1, 3, 4]),
        ("*:443/tcp", &[1, 2, 3]),
        ("192.0.2.0/24/icmp", &[6]),
        ("192.0.2.2/udp", &[5]),
        ("192.0.2.2:8", &[]),
        ("example.org", &[]),
    ] {
        let mut fixture = Fixture::new(&[]);
        for (port, (protocol, to)) in (1..).zip(destinations) {
            let fate = fixture.send_from(port, protocol, to);
            assert!(matches!(fate, Fate::Out(_)), "{to}");
        }
        let (flows, count) = (fixture.engine.flows(), fixture.end(rule));
        assert_eq!(count as usize, ended.len(), "{rule}");
        assert_eq!(fixture.engine.flows(), flows - ended.len(), "{rule}");
        let calls = fixture.host.take_calls();
        let closed = ended.iter().map(|place| {
            let how = if *place < 4 { "abort" } else { "close" };
            format!("{place}: {how}")
        });
        assert_eq!(calls, closed.collect::<Vec<_>>(), "{rule}");
        assert_eq!(fixture.end(rule), 0);
    }
}

#[test]
fn endpoint_is_ended_by_each_destination_to_which_it_has_sent_recently() {
    let sent = ["192.0.2.1:7", "192.0.2.2:7", "192.0.2.2:8"];
    for (rule, ended) in [
        ("192.0.2.1:7", 1),
        ("192.0.2.1:8", 0),
        ("192.0.2.2:7", 1),
        ("192.0.2.2:8", 1),
        ("192.0.2.3", 0),
    ] {
        let mut fixture = Fixture::new(&[]);
        for to in sent {
            fixture.send(UDP, to);
        }
        assert_eq!(fixture.end(rule), ended, "{rule}");
        assert_eq!(fixture.engine.flows(), 1 - ended as usize, "{rule}");
    }
}

#[test]
fn domain_names_the_addresses_that_rules_have_learned() {
    let mut fixture = Fixture::new(&["allow example.org", "allow 192.0.2.0/24"]);
    fixture.resolve("example.org", 1, |answer| {
        answer.address("example.org", 300, "198.51.100.7");
    });
    fixture.send_from(1, TCP, "198.51.100.7:443");
    fixture.send_from(2, TCP, "198.51.100.7:80");
    fixture.send_from(3, TCP, "192.0.2.1:443");
    assert_eq!(fixture.end("other.example:443/tcp"), 0);
    assert_eq!(fixture.end("example.org:443/tcp"), 1);
    assert_eq!(fixture.end("example.org"), 1);
    assert_eq!(fixture.engine.flows(), 1);
}
