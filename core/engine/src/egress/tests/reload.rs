//! Tests of changes of the egress rules while flows are open.

use super::fixture::Fate;
use super::*;
use crate::config::UdpFilter;
use crate::test_world::READABLE;

#[test]
fn connection_that_new_rules_deny_is_reset() {
    let mut fixture = Fixture::new(&[]);
    fixture.send_from(1, TCP, "192.0.2.1:80");
    fixture.send_from(2, TCP, "192.0.2.2:80");
    fixture.send_from(3, TCP, "[2001:db8::1]:80");
    fixture.moved();
    fixture.set_rules(&["deny 192.0.2.1", "deny 2001:db8::/32"]);
    assert_eq!(fixture.host.take_calls(), ["0: abort", "2: abort"]);
    assert_eq!(
        fixture.link.describe(),
        [
            "tcp 192.0.2.1:80 > 10.0.2.15:1 reset",
            "tcp [2001:db8::1]:80 > [fd70:6f6e:746f::15]:3 reset",
        ]
    );
    assert_eq!(fixture.moved(), [("frames_down", 2), ("policy_refused", 2)]);
    assert_eq!(fixture.engine.flows(), 1);
    fixture.set_rules(&["allow 192.0.2.2:443"]);
    assert_eq!(
        (fixture.host.take_calls(), fixture.engine.flows()),
        (vec!["1: abort".to_owned()], 0)
    );
}

#[test]
fn datagrams_of_peers_that_new_rules_deny_are_dropped() {
    let mut fixture = Fixture::new(&[]);
    for to in ["192.0.2.1:7", "192.0.2.2:7", "192.0.2.3:7"] {
        fixture.send(UDP, to);
    }
    fixture.set_rules(&["deny 192.0.2.1", "deny 192.0.2.3:7"]);
    let flow = fixture.host.flow(0);
    for from in ["192.0.2.1:7", "192.0.2.2:7"] {
        fixture.host.queue(0, from, None, b"data", 4);
    }
    fixture
        .engine
        .handle_socket(flow, READABLE, &mut fixture.link, &mut fixture.host, fixture.now);
    assert_eq!(
        fixture.link.describe(),
        ["udp 192.0.2.2:7 > 10.0.2.15:4000 hop 57 4"]
    );
    fixture.host.take_calls();
    assert!(matches!(fixture.send(UDP, "192.0.2.1:7"), Fate::Replied(_)));
    assert!(matches!(fixture.send(UDP, "192.0.2.3:7"), Fate::Replied(_)));
    assert!(matches!(fixture.send(UDP, "192.0.2.2:7"), Fate::Out(_)));
}

/// With `--udp-filter address` a peer represents all ports of its address.
#[test]
fn datagrams_from_ports_that_new_rules_deny_are_dropped() {
    for filter in [UdpFilter::Address, UdpFilter::AddressPort, UdpFilter::Endpoint] {
        let config = crate::Config {
            udp_filter: filter,
            ..crate::test_world::net().config
        };
        let mut fixture = Fixture::with_config(config);
        // The second peer of the endpoint is stored elsewhere than the first.
        for address in ["192.0.2.1", "192.0.2.2"] {
            let [denied, allowed] = [7, 8].map(|port| format!("{address}:{port}"));
            fixture.set_rules(&[]);
            fixture.send(UDP, &denied);
            fixture.send(UDP, &allowed);
            let passes = |fixture: &mut Fixture, from: &str| {
                fixture.host.queue(0, from, None, b"data", 4);
                let passed = fixture.read(0);
                assert!(passed.is_empty() || passed == [format!("udp {from} > 10.0.2.15:4000 hop 57 4")]);
                !passed.is_empty()
            };
            assert!(passes(&mut fixture, &denied) && passes(&mut fixture, &allowed));
            for rules in [&["deny *:7/udp"][..], &["allow *:8/udp"]] {
                fixture.set_rules(rules);
                for _ in 0..2 {
                    assert!(!passes(&mut fixture, &denied), "{filter:?} {rules:?}");
                    assert!(passes(&mut fixture, &allowed), "{filter:?} {rules:?}");
                }
            }
        }
    }
}

/// Kept are the ports to which the guest has sent; others of the same address are subject to the new rules.
#[test]
fn datagrams_from_kept_ports_only_are_received() {
    let mut fixture = Fixture::new(&[]);
    fixture.send(UDP, "192.0.2.1:7");
    fixture.set_rules_for_new_flows(&["deny 192.0.2.1:1-100/udp"]);
    for (from, passes) in [
        ("192.0.2.1:7", true),
        ("192.0.2.1:9", false),
        ("192.0.2.1:101", true),
    ] {
        for _ in 0..2 {
            fixture.host.queue(0, from, None, b"data", 4);
            assert_eq!(!fixture.read(0).is_empty(), passes, "{from}");
        }
    }
}

#[test]
fn rules_that_stay_keep_addresses_and_counts() {
    let mut fixture = Fixture::new(&["allow example.org", "deny 192.0.2.1"]);
    fixture.resolve("example.org", 1, |answer| {
        answer.address("example.org", 300, "198.51.100.7");
    });
    fixture.send_from(1, TCP, "198.51.100.7:80");
    fixture.send_from(1, TCP, "192.0.2.1:80");
    fixture.set_rules(&["deny 192.0.2.2", "deny 192.0.2.1", "allow example.org"]);
    assert_eq!(fixture.engine.flows(), 1);
    let counts = [("deny 192.0.2.1", 1), ("allow example.org", 1)];
    assert_eq!(
        fixture.counts(),
        counts.map(|(rule, hits)| (rule.to_owned(), hits))
    );
    assert!(matches!(
        fixture.send_from(2, TCP, "198.51.100.7:80"),
        Fate::Out(_)
    ));
    // The learned addresses were removed with the rule.
    fixture.set_rules(&[]);
    fixture.set_rules(&["allow example.org"]);
    assert_eq!(fixture.host.take_calls(), ["1: abort", "2: abort"]);
    assert_eq!(fixture.link.describe().len(), 2);
    assert!(matches!(
        fixture.send_from(3, TCP, "198.51.100.7:80"),
        Fate::Replied(_)
    ));
}

#[test]
fn tcp_connections_to_the_forwarder_end_when_rules_name_domains() {
    let mut fixture = Fixture::new(&["deny 192.0.2.1"]);
    assert_eq!(
        fixture.send(TCP, "10.0.2.3:53"),
        Fate::Out(vec!["0: tcp 192.0.2.53:53".to_owned()])
    );
    fixture.set_rules(&["deny 192.0.2.2"]);
    assert_eq!(fixture.engine.flows(), 1);
    fixture.set_rules(&["deny ads.example"]);
    assert_eq!(
        (fixture.host.take_calls(), fixture.engine.flows()),
        (vec!["0: abort".to_owned()], 0)
    );
}
