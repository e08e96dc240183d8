//! Tests of rules that are replaced without an end of the flows that the new rules refuse.

use super::fixture::Fate;
use super::*;

fn is_sent(fate: &Fate) -> bool {
    matches!(fate, Fate::Out(_))
}

#[test]
fn connections_continue_and_new_ones_are_refused() {
    let mut fixture = Fixture::new(&[]);
    fixture.send_from(1, TCP, "192.0.2.1:80");
    fixture.set_rules_for_new_flows(&["deny 192.0.2.1"]);
    assert_eq!(
        (fixture.host.take_calls(), fixture.engine.flows()),
        (Vec::new(), 1)
    );
    assert!(!is_sent(&fixture.send_from(2, TCP, "192.0.2.1:80")));
    // Other rules that keep flows, then rules that do not.
    fixture.set_rules_for_new_flows(&["allow 192.0.2.2"]);
    assert_eq!(fixture.engine.flows(), 1);
    fixture.set_rules(&["allow 192.0.2.2"]);
    assert_eq!(
        (fixture.host.take_calls(), fixture.engine.flows()),
        (vec!["0: abort".to_owned()], 0)
    );
}

#[test]
fn ports_to_which_an_endpoint_has_sent_continue_and_no_others() {
    let known = ["192.0.2.1:7", "192.0.2.1:8", "192.0.2.2:7", "192.0.2.3:7"];
    for rules in [&["deny 192.0.2.1", "deny *:7"][..], &["allow 192.0.2.3:9"]] {
        let mut fixture = Fixture::new(&[]);
        for to in known {
            assert!(is_sent(&fixture.send(UDP, to)));
        }
        fixture.set_rules_for_new_flows(rules);
        for to in known {
            assert!(is_sent(&fixture.send(UDP, to)), "{rules:?}: {to}");
        }
        assert_eq!(fixture.counts(), [], "kept flows match no rule");
        for from in ["192.0.2.1:7", "192.0.2.2:7"] {
            fixture.host.queue(0, from, None, b"data", 4);
            let packets = fixture.read(0);
            assert_eq!(packets, [format!("udp {from} > 10.0.2.15:4000 hop 57 4")]);
        }
        // Another port of an address, another address, another endpoint.
        for to in ["192.0.2.1:9", "192.0.2.4:7"] {
            let is_denied = !is_sent(&fixture.send(UDP, to));
            assert!(is_denied, "{rules:?}: {to}");
        }
        assert!(
            !is_sent(&fixture.send_from(4001, UDP, "192.0.2.1:7")),
            "{rules:?}"
        );
    }
}

#[test]
fn endpoint_is_subject_to_rules_again_that_do_not_keep_it() {
    let mut fixture = Fixture::new(&[]);
    fixture.send(UDP, "192.0.2.1:7");
    fixture.set_rules_for_new_flows(&["deny 192.0.2.1"]);
    assert!(is_sent(&fixture.send(UDP, "192.0.2.1:7")));
    fixture.set_rules(&["deny 192.0.2.1:7"]);
    assert!(!is_sent(&fixture.send(UDP, "192.0.2.1:7")));
    // A kept flow that later rules permit is not kept any more.
    fixture.set_rules(&[]);
    fixture.send(UDP, "192.0.2.1:7");
    fixture.set_rules_for_new_flows(&["deny 192.0.2.1"]);
    fixture.set_rules_for_new_flows(&["allow ads.example", "allow 192.0.2.1"]);
    fixture.set_rules(&["deny 192.0.2.1"]);
    assert!(!is_sent(&fixture.send(UDP, "192.0.2.1:7")));
}

#[test]
fn idle_endpoint_is_not_kept() {
    let mut fixture = Fixture::new(&[]);
    fixture.send(UDP, "192.0.2.1:7");
    fixture.set_rules_for_new_flows(&["deny 192.0.2.1"]);
    fixture.wait(Duration::from_secs(121));
    assert!(!is_sent(&fixture.send(UDP, "192.0.2.1:7")));
}

#[test]
fn echo_requests_to_the_same_address_continue() {
    for (known, other) in [
        ("192.0.2.1:0", "192.0.2.2:0"),
        ("[2001:db8::1]:0", "[2001:db8::2]:0"),
    ] {
        let mut fixture = Fixture::new(&[]);
        assert!(is_sent(&fixture.send(ICMP, known)));
        fixture.set_rules_for_new_flows(&["deny *"]);
        assert!(is_sent(&fixture.send(ICMP, known)), "{known}");
        assert_eq!(fixture.counts(), []);
        fixture
            .host
            .queue_reply(0, &addr(known).ip().to_string(), 1, b"data");
        assert_eq!(fixture.read(0).len(), 1, "the reply is sent to the guest");
        assert!(!is_sent(&fixture.send(ICMP, other)), "{other}");
        fixture.set_rules_for_new_flows(&["allow 198.51.100.0/24"]);
        assert!(is_sent(&fixture.send(ICMP, known)), "{known}");
        fixture.set_rules(&["deny *"]);
        assert!(!is_sent(&fixture.send(ICMP, known)), "{known}");
        fixture
            .host
            .queue_reply(0, &addr(known).ip().to_string(), 1, b"data");
        assert_eq!(fixture.read(0), [""; 0]);
    }
}

/// The forwarder's answers over TCP are not parsed, so rules with domains refuse connections to it.
#[test]
fn connections_to_the_forwarder_continue() {
    let mut fixture = Fixture::new(&[]);
    fixture.send(TCP, "10.0.2.3:53");
    fixture.set_rules_for_new_flows(&["deny ads.example"]);
    assert_eq!(fixture.engine.flows(), 1);
    assert!(!is_sent(&fixture.send_from(2, TCP, "10.0.2.3:53")));
    fixture.set_rules(&["deny ads.example"]);
    assert_eq!(fixture.engine.flows(), 0);
}
