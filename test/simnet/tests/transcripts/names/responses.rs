//! Tests of DNS responses while rules require a proof.

use super::*;

/// Returns the content of an HTTPS record with an address hint and keys of Encrypted Client Hello.
fn https() -> Vec<u8> {
    let mut content = vec![0, 1, 0];
    content.extend([&[0, 4, 0, 4][..], &SERVER_V4.octets()].concat());
    content.extend([0, 5, 0, 4, 1, 2, 3, 4]);
    content
}

#[test]
fn keys_of_encrypted_client_hello_are_removed_if_a_rule_is_strict() {
    for (lines, removed) in [(&[RULE][..], 0), (&[RULE, STRICT][..], 1)] {
        let config = Config {
            egress: Egress::new(&rules(lines)),
            resolvers: vec![(SERVER_V4, 53).into()],
            ..config(1500)
        };
        let mut given = given(config, HostPlan::default());
        let response = ask(&mut given, NAME, 65, 60, &https());
        let contains = |key: [u8; 4]| response.windows(4).any(|window| window == key);
        assert_eq!(contains([0, 5, 0, 4]), removed == 0);
        assert!(contains([0, 4, 0, 4]));
        assert_eq!(given.engine.counters().dns_ech_removed, removed);
        // The hint is an address of the name.
        is_answered(&mut given, &syn());
    }
}

#[test]
fn malformed_response_with_a_strict_rule_is_a_failure() {
    let config = Config {
        egress: Egress::new(&rules(&[STRICT])),
        resolvers: vec![(SERVER_V4, 53).into()],
        ..config(1500)
    };
    let mut given = given(config, HostPlan::default());
    let response = ask(&mut given, NAME, 65, 60, &[0, 1, 0, 0, 5, 0, 99]);
    assert_eq!(response[3] & 0xf, 2, "SERVFAIL");
    assert_eq!(response.len(), query(NAME, 65).len());
    let counters = given.engine.counters();
    assert_eq!((counters.dns_ech_malformed, counters.dns_failed), (1, 1));
}
