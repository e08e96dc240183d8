//! Tests of connections that prove no name.

use super::*;

/// Returns the streams that prove nothing, each with the word for the reason and the name that is reported.
pub(super) fn unproven() -> Vec<(Vec<u8>, &'static str, Option<&'static str>)> {
    let without_name = Hello {
        extensions: Some(vec![(10, vec![0, 2, 0, 29])]),
        ..Hello::new(NAME)
    };
    let without_extensions = Hello {
        extensions: None,
        version: 0x0301,
    };
    let mut several = Hello::new(NAME);
    several.extensions.as_mut().expect("extensions")[0] =
        Hello::names(&[server_name(0, NAME.as_bytes()), server_name(0, b"b.example")].concat());
    let mut long = Hello::new(NAME);
    let padding = (21, vec![0; LIMIT]);
    long.extensions.as_mut().expect("extensions").push(padding);
    vec![
        (
            b"GET / HTTP/1.1\r\nHost: api.example.org\r\n\r\n".to_vec(),
            "not-tls",
            None,
        ),
        (b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(), "not-tls", None),
        (hello("other.example"), "other-name", Some("other.example")),
        (hello("example.org"), "other-name", Some("example.org")),
        (
            hello("x.api.example.org"),
            "other-name",
            Some("x.api.example.org"),
        ),
        (hello("203.0.113.7"), "malformed", None),
        (hello("münchen.example"), "malformed", None),
        (hello_of(&without_name), "no-name", None),
        (hello_of(&without_extensions), "no-name", None),
        (hello_of(&several), "malformed", None),
        (hello_of(&long), "too-long", None),
        ([&hello(NAME)[..20], &[0xff; 200]].concat(), "malformed", None),
    ]
}

#[test]
fn connection_without_proof_is_reset_and_no_octet_passes() {
    for (stream, why, name) in unproven() {
        let (mut given, events) = open(&[RULE]);
        // The last segments may meet a connection that is reset already.
        send(&mut given, 0, &stream[..stream.len().min(1460)]);
        for (at, data) in stream.chunks(1460).enumerate().skip(1) {
            if given.engine.flows() > 0 {
                send(&mut given, at * 1460, data);
            }
        }
        is_reset(&mut given);
        let up = stream.len().min(17 * 1024);
        let mut expected: Vec<String> = name.map(|name| format!("name {name}")).into_iter().collect();
        expected.push(format!("{why} Some(Rule(0))"));
        if why != "too-long" {
            expected.push(format!("closed unproven, {up} up, 0 down"));
            let expected: Vec<_> = expected.iter().map(String::as_str).collect();
            events.had(&expected);
        }
        let news: Vec<String> = given.engine.take_news().iter().map(ToString::to_string).collect();
        assert!(
            matches!(&news[..], [line] if line.starts_with("refused tcp to 203.0.113.7:80: allow api.example.org:80/tls: ")),
            "{news:?}"
        );
        let counters = given.engine.counters();
        let refused = counters
            .iter()
            .filter(|(name, count)| name.starts_with("tls_refused_") && *count > 0);
        let refused: Vec<_> = refused.collect();
        let counter = format!("tls_refused_{}", why.replace('-', "_"));
        assert_eq!(refused, [(counter.as_str(), 1)]);
        assert_eq!((counters.policy_refused, counters.tls_proven), (1, 0));
        // The rules count it as a destination without a rule.
        assert_eq!(given.engine.egress().hits().collect::<Vec<_>>(), [0, 1, 0]);
    }
}

#[test]
fn encrypted_client_hello_is_refused_by_strict_rules_only() {
    let mut with_ech = Hello::new(NAME);
    let ech = (0xfe0d, vec![0; 40]);
    with_ech.extensions.as_mut().expect("extensions").push(ech);
    let stream = hello_of(&with_ech);
    let (mut given, _) = open(&[RULE]);
    send(&mut given, 0, &stream);
    assert_eq!(received(&given), stream);

    let (mut given, events) = open(&[STRICT]);
    send(&mut given, 0, &stream);
    is_reset(&mut given);
    let up = stream.len();
    events.had(&[
        "name api.example.org",
        "ech Some(Rule(0))",
        &format!("closed unproven, {up} up, 0 down"),
    ]);
    // Another rule may permit what the strict one does not.
    let (mut given, events) = open(&[STRICT, "allow *.example.org:80/tls"]);
    send(&mut given, 0, &stream);
    assert_eq!(received(&given), stream);
    events.had(&["name api.example.org", "proven Some(Rule(1))"]);
}

#[test]
fn incomplete_hello_is_reset_after_five_seconds() {
    for len in [0, 1, 50] {
        let (mut given, events) = open(&[RULE]);
        send(&mut given, 0, &hello(NAME)[..len]);
        given.take();
        given.pass(PATIENCE - millis(1));
        given.quiet();
        assert_eq!(given.engine.flows(), 1);
        given.pass(millis(2));
        is_reset(&mut given);
        events.had(&[
            "timeout Some(Rule(0))",
            &format!("closed unproven, {len} up, 0 down"),
        ]);
    }
}

#[test]
fn time_counts_from_the_handshake() {
    let (mut given, _) = with_rules(&[RULE], SILENT, HostPlan::default());
    given
        .host
        .serve_recording(PORT, ConnectResult::After(seconds(8)), SILENT);
    given.up(syn());
    given.pass(seconds(9));
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    given.pass(seconds(4));
    send(&mut given, 0, &hello(NAME));
    assert_eq!(received(&given), hello(NAME));
}

#[test]
fn end_of_the_stream_before_the_end_of_the_hello_is_reset() {
    for len in [0, 10] {
        let (mut given, events) = open(&[RULE]);
        let data = hello(NAME)[..len].to_vec();
        given.up(up(ACK.and(FIN), 1001, 1).carrying(data));
        is_reset(&mut given);
        events.had(&[
            "ended Some(Rule(0))",
            &format!("closed unproven, {len} up, 0 down"),
        ]);
    }
    // An end behind the hello is sent.
    let (mut given, _) = open(&[RULE]);
    given.up(up(ACK.and(FIN), 1001, 1).carrying(hello(NAME)));
    given.pass(millis(1));
    assert_eq!(received(&given), hello(NAME));
    assert!(
        given
            .host
            .reports()
            .all(|report| report.app.is_some_and(|app| app.saw_end()))
    );
}
