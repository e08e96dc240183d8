//! Tests of the rules and addresses that permit connections with a proof, and of their replacement.

use super::*;

#[test]
fn name_of_another_rule_needs_the_address_from_that_names_response() {
    let rules = [RULE, "allow other.example:80/tls"];
    let (mut given, events) = open(&rules);
    send(&mut given, 0, &hello("other.example"));
    is_reset(&mut given);
    events.had(&[
        "name other.example",
        "other-name Some(Rule(0))",
        &format!("closed unproven, {} up, 0 down", hello("other.example").len()),
    ]);
    // Both names have the address.
    let (mut given, _) = with_rules(&rules, SILENT, HostPlan::default());
    resolve(&mut given, "other.example", 60);
    connect(&mut given);
    send(&mut given, 0, &hello("other.example"));
    assert_eq!(received(&given), hello("other.example"));
    assert_eq!(given.engine.egress().hits().collect::<Vec<_>>(), [0, 1, 0, 0]);
}

#[test]
fn address_that_the_guest_was_not_given_for_the_name_is_refused() {
    let config = Config {
        egress: Egress::new(&rules(&[RULE])),
        resolvers: vec![(SERVER_V4, 53).into()],
        ..config(1500)
    };
    let mut given = given(config, HostPlan::default());
    is_refused(&mut given, &syn());
    // A response for another name that contains the name, and its address, as well.
    resolve(&mut given, "attacker.example", 60);
    is_refused(&mut given, &syn());
    resolve(&mut given, NAME, 60);
    is_answered(&mut given, &syn());
    let other_port = dial(1, 81);
    is_refused(&mut given, &other_port);
}

#[test]
fn pin_expires_after_its_ttl_and_five_minutes() {
    for (ttl, lifetime) in [(0, 360), (100, 400)] {
        for (wait, expired) in [(lifetime - 1, false), (lifetime + 1, true)] {
            let (mut given, _) = with_rules(&[RULE], SILENT, HostPlan::default());
            given.pass(seconds(1000));
            resolve(&mut given, NAME, ttl);
            given.pass(seconds(wait));
            match expired {
                true => is_refused(&mut given, &syn()),
                false => is_answered(&mut given, &syn()),
            }
        }
    }
}

#[test]
fn flow_outlives_its_pin() {
    let (mut given, events) = with_rules(&[RULE], SILENT, HostPlan::default());
    given.pass(seconds(358));
    connect(&mut given);
    // The pin that the SYN has found expires before the ClientHello.
    given.pass(seconds(3));
    send(&mut given, 0, &hello(NAME));
    assert_eq!(received(&given), hello(NAME));
    given.set_rules(&rules(&["deny 192.0.2.1", RULE]));
    assert_eq!(given.engine.flows(), 1);
    events.had(&["opened", "name api.example.org", "proven Some(Rule(0))"]);
    // The new rules do not permit the proven name.
    given.set_rules(&rules(&["allow other.example:80/tls"]));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn unconditional_rule_needs_no_proof() {
    for lines in [[RULE, "allow 203.0.113.7:80"], ["allow api.example.org", RULE]] {
        let (mut given, events) = with_rules(&lines, SILENT, HostPlan::default());
        connect(&mut given);
        send(&mut given, 0, b"plain text");
        assert_eq!(received(&given), b"plain text");
        let rule = lines.iter().position(|line| *line != RULE).expect("another rule");
        events.had(&["opened", &format!("decided Rule({rule})")]);
    }
    let (mut given, _) = with_rules(&[RULE, "deny 203.0.113.7"], SILENT, HostPlan::default());
    is_refused(&mut given, &syn());
}

#[test]
fn new_rules_apply_to_connections_without_proof() {
    let half = hello(NAME)[..30].to_vec();
    let begun = || {
        let (mut given, events) = open(&[RULE]);
        send(&mut given, 0, &half);
        given.take();
        given.forget_counters();
        (given, events)
    };
    // Rules that permit the destination without a proof.
    for lines in [&["allow 203.0.113.0/24"][..], &[][..]] {
        let (mut given, events) = begun();
        given.set_rules(&rules(lines));
        assert_eq!((received(&given), given.engine.proving()), (half.clone(), 0));
        send(&mut given, half.len(), b"plain text");
        assert_eq!(received(&given), [&half[..], b"plain text"].concat());
        events.had(&[]);
    }
    // Rules that refuse it.
    for refused in [RefusedFlows::Reset, RefusedFlows::Keep] {
        let (mut given, events) = begun();
        let Given {
            engine, host, link, ..
        } = &mut given;
        engine.replace_rules(&rules(&["allow 192.0.2.1"]), refused, link, host, START);
        given.pass(millis(1));
        is_reset(&mut given);
        events.had(&["closed policy, 30 up, 0 down"]);
    }
    // Rules that still require the name, and others that require another one.
    let (mut given, _) = begun();
    given.set_rules(&rules(&["allow 192.0.2.1", RULE]));
    send(&mut given, half.len(), &hello(NAME)[30..]);
    assert_eq!(received(&given), hello(NAME));
    let (mut given, events) = begun();
    given.set_rules(&rules(&["allow *.example.org:80/tls"]));
    is_reset(&mut given);
    events.had(&["closed policy, 30 up, 0 down"]);
}

#[test]
fn new_rules_require_a_proof_of_connections_without_data_only() {
    let (mut given, _) = with_rules(&[RULE, "allow 203.0.113.7"], SILENT, HostPlan::default());
    given
        .host
        .serve_recording(PORT, ConnectResult::After(seconds(1)), SILENT);
    given.up(syn());
    given.set_rules(&rules(&[RULE]));
    given.pass(millis(1100));
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    send(&mut given, 0, b"plain text");
    is_reset(&mut given);

    let (mut given, _) = with_rules(&[RULE, "allow 203.0.113.7"], SILENT, HostPlan::default());
    connect(&mut given);
    send(&mut given, 0, b"plain text");
    assert_eq!(received(&given), b"plain text");
    given.set_rules(&rules(&[RULE]));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn decider_decides_at_the_syn_and_the_proof_comes_in_addition() {
    let later = |given: &mut Given| {
        let decider = ScriptedDecider::new(Answer::Later);
        given.engine.set_decider(Box::new(decider.clone()), seconds(2));
        given.up(syn());
        given.quiet();
        let [request] = &decider.take()[..] else {
            panic!("one request");
        };
        assert_eq!(request.rule.as_deref(), Some(RULE));
        request.token
    };
    let (mut given, events) = with_rules(&[RULE], SILENT, HostPlan::default());
    let token = later(&mut given);
    let _ = given.verdict(token, Verdict::Allow);
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    send(&mut given, 0, &hello("other.example"));
    is_reset(&mut given);
    events.had(&[
        "opened",
        "decided Decider",
        "name other.example",
        "other-name Some(Rule(0))",
        &format!("closed unproven, {} up, 0 down", hello("other.example").len()),
    ]);
    let (mut given, _) = with_rules(&[RULE], SILENT, HostPlan::default());
    let token = later(&mut given);
    let _ = given.verdict(token, Verdict::Deny(Denial::Reset));
    assert!(given.take_one().flags.has(RST));
    assert_eq!(given.engine.flows(), 0);
}
