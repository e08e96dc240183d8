//! Addresses of rules that require proof of a domain.

use core::time::Duration;

use super::fixture::{Answer, question};
use super::*;
use crate::Instant;
use crate::egress::{Action, Decision, DecisionGround, Destination, Egress};

const START: Instant = Instant(1_000_000_000_000);

/// Returns egress rules for connections that prove example.org, after a response to its query for records of type `kind`.
fn learned(kind: u16, answer: impl FnOnce(&mut Answer)) -> Egress {
    let rule = EgressRule {
        action: Action::Allow,
        to: "example.org:443/tls".parse().unwrap(),
    };
    let egress = Egress::new(&[rule]);
    let mut message = Answer::to(&question("example.org", kind));
    answer(&mut message);
    egress.learn(&message.0, START);
    egress
}

/// Returns true if `address` is known for the domain after `seconds`.
fn is_known(egress: &Egress, address: &str, seconds: u64) -> bool {
    let address = address.parse().unwrap();
    let to = Destination {
        protocol: TCP,
        written: address,
        remote: address,
        embedded: &[],
        name: None,
        port: Some(443),
    };
    let now = START + Duration::from_secs(seconds);
    egress.select(&"example.org".parse().unwrap()).contains(&to, now)
}

#[test]
fn address_is_pinned_for_its_ttl_and_five_minutes() {
    for (ttl, seconds) in [
        (0, 360),
        (60, 360),
        (61, 361),
        (3_600, 3_900),
        (u32::MAX >> 1, 86_700),
    ] {
        let mut egress = learned(1, |answer| {
            answer.address("example.org", ttl, "198.51.100.7");
        });
        assert!(is_known(&egress, "198.51.100.7", seconds), "TTL {ttl}");
        assert!(!is_known(&egress, "198.51.100.7", seconds + 1), "TTL {ttl}");
        // A flow does not renew the pin.
        let flows = ["198.51.100.7".parse().unwrap()];
        egress.keep(&flows, false, START + Duration::from_secs(seconds));
        assert_eq!(egress.next_sweep(), None);
        assert!(!is_known(&egress, "198.51.100.7", seconds + 1), "TTL {ttl}");
    }
}

#[test]
fn hints_of_services_are_pinned() {
    let egress = learned(65, |answer| {
        answer
            .https("example.org", 1, "", &["198.51.100.7", "2001:db8:5::7"])
            .https("example.org", 2, "cdn.example", &["198.51.100.8"])
            .https("other.example", 1, "", &["198.51.100.9"])
            .beside(3)
            .address("cdn.example", 60, "198.51.100.10")
            .address("other.example", 60, "198.51.100.11");
    });
    for (address, is_pinned) in [
        ("198.51.100.7", true),
        ("2001:db8:5::7", true),
        ("198.51.100.8", true),
        ("198.51.100.9", false),
        ("198.51.100.10", true),
        ("198.51.100.11", false),
    ] {
        assert_eq!(is_known(&egress, address, 1), is_pinned, "{address}");
    }
}

#[test]
fn only_connections_are_allowed_by_a_rule_that_requires_proof() {
    let mut egress = learned(1, |answer| {
        answer.address("example.org", 60, "198.51.100.7");
    });
    let address = "198.51.100.7".parse().unwrap();
    let to = |protocol, port| Destination {
        protocol,
        written: address,
        remote: address,
        embedded: &[],
        name: None,
        port,
    };
    let decisions = [
        (TCP, Some(443), Decision::AllowedOnProof),
        (TCP, Some(444), Decision::Refused(DecisionGround::Unlisted)),
        (UDP, Some(443), Decision::Refused(DecisionGround::TlsOnly(0))),
        (UDP, Some(444), Decision::Refused(DecisionGround::Unlisted)),
        (ICMP, None, Decision::Refused(DecisionGround::Unlisted)),
    ];
    for (protocol, port, decision) in decisions {
        assert_eq!(
            egress.decide(&to(protocol, port), START),
            decision,
            "{protocol} {port:?}"
        );
    }
    // Nothing is counted before the proof.
    let hits: Vec<u64> = egress.hits().collect();
    assert_eq!(hits, [0, 4, 0]);
}
