//! Tests of connections that have to prove a name while there is an upstream proxy: those with one route, and those whose name
//! decides between the proxy and a direct connection (early accept).

use std::sync::Arc;

use pontoon_engine::proxy::{Proxy, ProxyDestinations};
use pontoon_simnet::host::ProxyExchange;

use super::super::proxies::{ANSWER, REQUEST, http};
use super::refused::unproven;
use super::*;

/// Name whose connections use the proxy. [`NAME`] has the same address.
const PROXIED: &str = "files.example";
const RULES: [&str; 2] = [RULE, "allow files.example:80/tls"];

/// Rules, or destinations of the proxy.
type Texts = &'static [&'static str];

/// Port of the proxy, at which the simulated host knows it.
const PROXY_PORT: u16 = 81;

/// Returns an engine with a proxy, whose guest has resolved both names. The server and the proxy record what they receive.
fn routed(lines: &[&str], through: &[&str], direct: &[&str]) -> (Given, Recorder) {
    let targets = |list: &[&str]| {
        list.iter()
            .map(|text| text.parse().expect("a target"))
            .collect::<Vec<_>>()
    };
    let proxy = Proxy {
        destinations: ProxyDestinations::new(&targets(through), &targets(direct)),
        ..http(&[(Ipv4Addr::new(192, 0, 2, 1), PROXY_PORT).into()])
    };
    let config = Config {
        egress: Egress::new(&rules(lines)),
        resolvers: vec![(SERVER_V4, 53).into()],
        proxy: Some(Arc::new(proxy)),
        ..config(1500)
    };
    let (mut given, events) = recorded(Given::new(config, PLAIN, HostPlan::default()));
    serve_direct(&mut given, ConnectResult::Now);
    serve_proxy(&mut given, ANSWER, SILENT);
    resolve(&mut given, NAME, 60);
    resolve(&mut given, PROXIED, 60);
    given.forget_counters();
    (given, events)
}

fn serve_direct(given: &mut Given, answer: ConnectResult) {
    given.host.serve_recording(PORT, answer, SILENT);
}

/// Serves the proxy, which sends `answer` and then the bytes of `script`.
fn serve_proxy(given: &mut Given, answer: &[u8], script: Script) {
    let exchange = ProxyExchange {
        request_len: REQUEST.len(),
        answer: answer.to_vec(),
    };
    let script = Script {
        send: script.send + answer.len() as u64,
        ..script
    };
    given
        .host
        .serve_proxy(PROXY_PORT, ConnectResult::Now, script, exchange);
    given.host.record(PROXY_PORT);
}

/// Returns an engine with an established connection whose name decides about its route.
fn accepted() -> (Given, Recorder) {
    let (mut given, events) = routed(&RULES, &[], &[NAME]);
    let calls = given.host.calls();
    connect(&mut given);
    events.had(&["opened"]);
    assert_eq!((given.host.calls(), given.host.open()), (calls, 0));
    (given, events)
}

/// Checks that the guest was sent a reset, and no state is left.
#[track_caller]
fn ended(given: &mut Given) {
    let last = take_last(given);
    assert!(last.flags.has(RST), "{last:?}");
    assert_eq!(given.host.wrong(), [""; 0]);
    let left = (given.engine.flows(), given.host.open(), given.engine.proving());
    assert_eq!(left, (0, 0, 0));
}

#[test]
fn names_with_one_address_have_their_own_routes() {
    let cases: [(Texts, Texts); 6] = [
        (&[], &[NAME]),
        (&[], &["*.example.org"]),
        (&[], &["198.51.100.0/24", "api.example.org:80/tcp"]),
        (&[PROXIED], &[]),
        (&["*.example.org", PROXIED], &[NAME]),
        (&["203.0.113.0/24"], &[NAME, "*:81"]),
    ];
    for (through, direct) in cases {
        for (place, name) in [NAME, PROXIED].into_iter().enumerate() {
            let (mut given, events) = routed(&RULES, through, direct);
            given.up(syn());
            given.down(syn_ack());
            assert_eq!(given.host.open(), 0, "{through:?} {direct:?}");
            given.counted(|counters| {
                one_each(counters);
                counters.tcp_opened += 1;
                counters.tls_accepted_early += 1;
            });
            given.up(up(ACK, 1001, 1));
            let stream = [&hello(name)[..], b"early data"].concat();
            send(&mut given, 0, &stream);
            given.pass(millis(200));
            given.take();
            assert_eq!(received(&given), stream);
            let proven = format!("proven Some(Rule({place}))");
            let mut expected = vec!["opened".to_owned(), format!("name {name}"), proven];
            let is_proxied = name == PROXIED;
            expected.extend(is_proxied.then(|| "decided Proxy".to_owned()));
            events.had(&expected.iter().map(String::as_str).collect::<Vec<_>>());
            let request = if is_proxied { REQUEST } else { &[] };
            assert_eq!(given.host.proxy_request(PROXY_PORT), request);
            assert_eq!(given.engine.counters().proxy_opened, u64::from(is_proxied));
            assert_eq!(given.engine.proving(), 0);
            // The connection is like any other.
            send(&mut given, stream.len(), b"request");
            assert_eq!(received(&given), [&stream[..], b"request"].concat());
            given.up(up(RST, seq(stream.len() + 7), 0));
            assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
        }
    }
}

#[test]
fn name_with_one_route_is_connected_before_the_syn_is_answered() {
    // The rules of the proxy options are about other names, or about all that the egress rules permit.
    let cases: [(Texts, Texts, Texts, bool); 6] = [
        (&[RULE], &[], &[PROXIED], true),
        (&[RULE], &[], &[NAME], false),
        (&[RULE], &[PROXIED], &[], false),
        (&[RULE], &["*.example.org:80-90"], &[PROXIED], true),
        (&RULES, &[NAME, PROXIED], &["*.example.org:81"], true),
        (&RULES, &[], &["203.0.113.7:80", NAME], false),
    ];
    for (lines, through, direct, is_proxied) in cases {
        let (mut given, events) = routed(lines, through, direct);
        given.up(syn());
        assert_eq!(given.host.open(), 1, "{through:?} {direct:?}");
        given.pass(millis(200));
        given.down(syn_ack());
        match is_proxied {
            true => events.had(&["opened to 192.0.2.1:81", "decided Proxy"]),
            false => events.had(&["opened"]),
        }
        given.up(up(ACK, 1001, 1));
        send(&mut given, 0, &hello(NAME));
        assert_eq!(received(&given), hello(NAME));
        assert_eq!(given.host.proxy_request(PROXY_PORT).is_empty(), !is_proxied);
        assert_eq!(given.engine.counters().tls_accepted_early, 0);
    }
}

#[test]
fn payload_reaches_the_tunnel_of_the_proxy_after_the_proof_only() {
    let open = |answer: &[u8], script| {
        let (mut given, events) = routed(&[RULE], &[], &[]);
        serve_proxy(&mut given, answer, script);
        given.up(syn());
        given.pass(millis(200));
        given.down(syn_ack());
        given.up(up(ACK, 1001, 1));
        given.pass(millis(200));
        given.quiet();
        events.had(&["opened to 192.0.2.1:81", "decided Proxy"]);
        (given, events)
    };
    let hello = hello(NAME);
    for cut in [1, 5, 60, hello.len() - 1] {
        let (mut given, events) = open(ANSWER, SILENT);
        send(&mut given, 0, &hello[..cut]);
        given.pass(seconds(2));
        assert_eq!(received(&given), [0; 0]);
        assert_eq!(given.host.proxy_request(PROXY_PORT), REQUEST);
        send(&mut given, cut, &hello[cut..]);
        assert_eq!(received(&given), hello);
        events.had(&["name api.example.org", "proven Some(Rule(0))"]);
    }
    for (stream, why, _) in unproven() {
        let (mut given, _) = open(ANSWER, SILENT);
        for (at, data) in stream.chunks(1460).enumerate() {
            if given.engine.flows() > 0 {
                send(&mut given, at * 1460, data);
            }
        }
        is_reset(&mut given);
        let counter = format!("tls_refused_{}", why.replace('-', "_"));
        let counters = given.engine.counters();
        assert!(
            counters.iter().any(|(name, count)| name == counter && count == 1),
            "{why}"
        );
    }
    // What the server sends first waits behind the answer of the proxy.
    let (mut given, _) = open(ANSWER, Script::sending(100));
    send(&mut given, 0, &hello);
    given.pass(millis(50));
    assert_eq!(take_bytes(&mut given), 100);
    assert_eq!(received(&given), hello);
}

#[test]
fn connection_without_proof_is_reset_and_no_socket_is_opened() {
    for (stream, why, name) in unproven() {
        let (mut given, events) = accepted();
        let calls = given.host.calls();
        for (at, data) in stream.chunks(1460).enumerate() {
            if given.engine.flows() > 0 {
                send(&mut given, at * 1460, data);
            }
        }
        ended(&mut given);
        assert_eq!(given.host.calls(), calls);
        let mut expected: Vec<String> = name.map(|name| format!("name {name}")).into_iter().collect();
        expected.push(format!("{why} Some(Rule(0))"));
        if why != "too-long" {
            expected.push(format!("closed unproven, {} up, 0 down", stream.len()));
            events.had(&expected.iter().map(String::as_str).collect::<Vec<_>>());
        }
        assert_eq!(given.engine.counters().policy_refused, 1);
    }
    for len in [0, 50] {
        let (mut given, events) = accepted();
        send(&mut given, 0, &hello(NAME)[..len]);
        given.take();
        given.pass(PATIENCE - millis(1));
        given.quiet();
        given.pass(millis(2));
        ended(&mut given);
        let closed = format!("closed unproven, {len} up, 0 down");
        events.had(&["timeout Some(Rule(0))", &closed]);
    }
    // A guest that does not complete its handshake.
    let (mut given, events) = routed(&RULES, &[], &[NAME]);
    given.up(syn());
    given.pass(seconds(200));
    ended(&mut given);
    events.had(&["opened", "closed timeout, 0 up, 0 down"]);
}

#[test]
fn connect_that_fails_after_the_proof_is_a_reset_and_is_reported() {
    for (answer, failure) in [
        (ConnectResult::Fail(Failure::Refused), "connection refused"),
        (
            ConnectResult::FailAfter(millis(3), Failure::HostUnreachable),
            "host unreachable",
        ),
        (ConnectResult::Never, "timed out"),
    ] {
        let (mut given, events) = accepted();
        serve_direct(&mut given, answer);
        let hello = hello(NAME);
        send(&mut given, 0, &hello);
        given.pass(seconds(11));
        ended(&mut given);
        let closed = format!("closed connect-failed: {failure}, {} up, 0 down", hello.len());
        events.had(&["name api.example.org", "proven Some(Rule(0))", &closed]);
        assert_eq!(given.engine.counters().tcp_connect_failed, 1);
    }
    for (answer, reason) in [
        (
            &b"HTTP/1.1 403 Forbidden\r\n\r\n"[..],
            "proxy-refused: the proxy answered with status 403 (Forbidden)",
        ),
        (b"HTTP/1.1 200 ", "proxy-failed: timed out"),
    ] {
        let (mut given, events) = accepted();
        serve_proxy(&mut given, answer, SILENT);
        let hello = hello(PROXIED);
        send(&mut given, 0, &hello);
        given.pass(seconds(11));
        ended(&mut given);
        let closed = format!("closed {reason}, {} up, 0 down", hello.len());
        events.had(&[
            "name files.example",
            "proven Some(Rule(1))",
            "decided Proxy",
            &closed,
        ]);
        assert_eq!(received(&given), [0; 0]);
    }
}

#[test]
fn data_and_fin_of_the_guest_wait_for_the_connect() {
    let (mut given, _) = accepted();
    serve_direct(&mut given, ConnectResult::After(seconds(3)));
    let stream = [&hello(NAME)[..], &[7; 9000]].concat();
    send(&mut given, 0, &stream);
    given.up(up(ACK.and(FIN), seq(stream.len()), 1));
    given.pass(millis(2900));
    assert_eq!((received(&given), given.engine.proving()), (vec![], 1));
    given.pass(millis(200));
    assert_eq!((received(&given), given.engine.proving()), (stream.clone(), 0));
    given.pass(millis(100));
    let end = take_last(&mut given);
    assert_eq!(end.ack, seq(stream.len() + 1));
    // The time of the ClientHello does not limit the connect.
    let (mut given, _) = accepted();
    serve_direct(&mut given, ConnectResult::After(seconds(8)));
    send(&mut given, 0, &hello(NAME));
    given.pass(millis(8100));
    assert_eq!(received(&given), hello(NAME));
}

#[test]
fn window_is_limited_until_the_connect() {
    let (mut given, _) = accepted();
    serve_direct(&mut given, ConnectResult::After(seconds(3)));
    let stream = [&hello(NAME)[..], &[7; 60_000]].concat();
    send(&mut given, 0, &stream);
    let edge = given.take().iter().fold(0, |edge, packet| match packet {
        Packet::Tcp(segment) => edge.max(segment.ack - 1001 + u32::from(segment.window)),
        other => panic!("{other:?} is no segment"),
    });
    assert!(edge as usize <= LIMIT + 256, "{edge}");
    given.pass(millis(3100));
    let held = received(&given);
    assert!(held.len() <= LIMIT + 256 && stream.starts_with(&held));
    send(&mut given, held.len(), &stream[held.len()..held.len() + 5000]);
    assert_eq!(received(&given), stream[..held.len() + 5000]);
}

#[test]
fn reset_of_the_guest_ends_the_connect() {
    for name in [NAME, PROXIED] {
        let (mut given, _) = accepted();
        serve_direct(&mut given, ConnectResult::Never);
        serve_proxy(&mut given, b"HTTP/1.1 ", SILENT);
        send(&mut given, 0, &hello(name));
        given.pass(millis(500));
        assert_eq!(given.host.open(), 1);
        given.take();
        given.up(up(RST, seq(hello(name).len()), 0));
        given.quiet();
        let left = (given.engine.flows(), given.host.open(), given.engine.proving());
        assert_eq!(left, (0, 0, 0));
    }
}

#[test]
fn accepted_connections_beyond_the_limit_are_reset() {
    let (mut given, _) = routed(&RULES, &[], &[NAME]);
    for port in 1..=1025 {
        given.up(dial(port, PORT));
        let answer = given.take_one();
        assert_eq!(answer.flags, SYN.and(ACK));
        let from = (GUEST_V4, port).into();
        let segment = Segment::between(from, SERVER).with(ACK, 1001, answer.seq.wrapping_add(1));
        given.packet_up(&Packet::Tcp(segment));
        match port {
            ..=1024 => given.quiet(),
            _ => assert!(given.take_one().flags.has(RST)),
        }
    }
    assert_eq!((given.engine.proving(), given.host.open()), (1024, 0));
    assert_eq!(given.engine.counters().tls_refused_limit, 1);
    given.pass(PATIENCE + millis(5));
    assert_eq!((given.engine.proving(), given.engine.flows()), (0, 0));
}

#[test]
fn new_rules_apply_to_accepted_connections() {
    // Rules that permit the destination without a proof: the address decides about the route.
    for (direct, is_proxied) in [(&[NAME][..], false), (&["*.example.org:80"], false)] {
        let (mut given, events) = routed(&RULES, &[], direct);
        connect(&mut given);
        send(&mut given, 0, b"plain");
        let waiting = given.engine.flows();
        assert_eq!(waiting, 0, "no TLS");
        events.had(&["opened", "not-tls Some(Rule(0))", "closed unproven, 5 up, 0 down"]);
        let (mut given, _) = routed(&RULES, &[], direct);
        connect(&mut given);
        send(&mut given, 0, &hello(NAME)[..30]);
        given.set_rules(&[]);
        given.pass(millis(100));
        assert_eq!(received(&given), hello(NAME)[..30]);
        send(&mut given, 30, b"plain text");
        assert_eq!(received(&given), [&hello(NAME)[..30], b"plain text"].concat());
        assert_eq!(!given.host.proxy_request(PROXY_PORT).is_empty(), is_proxied);
    }
    // Before the handshake with the guest is complete, and back.
    let (mut given, _) = routed(&RULES, &[], &[NAME]);
    given.up(syn());
    given.down(syn_ack());
    given.set_rules(&[]);
    given.set_rules(&rules(&RULES));
    given.up(up(ACK, 1001, 1));
    send(&mut given, 0, b"plain text");
    ended(&mut given);
    // Rules that refuse it, before and during the connect; and rules that require a proof again of data that needed none.
    for (first, second) in [
        (None, &["allow 192.0.2.1"][..]),
        (Some(&RULES[..]), &["deny 203.0.113.7"]),
        (Some(&[]), &RULES),
    ] {
        let (mut given, _) = accepted();
        serve_direct(&mut given, ConnectResult::Never);
        match first {
            None => send(&mut given, 0, &hello(NAME)[..30]),
            Some([]) => {
                send(&mut given, 0, &hello(NAME)[..30]);
                given.set_rules(&[]);
                assert_eq!(given.host.open(), 1);
            }
            Some(_) => {
                send(&mut given, 0, &hello(NAME));
                assert_eq!(given.host.open(), 1);
            }
        }
        given.take();
        given.set_rules(&rules(second));
        ended(&mut given);
        assert_eq!(received(&given), [0; 0]);
    }
}

#[test]
fn redirect_of_the_decider_precedes_the_route_by_name() {
    let (mut given, events) = routed(&RULES, &[], &[NAME]);
    let decider = ScriptedDecider::new(Answer::Now(Verdict::Redirect((SERVER_V4, 82).into())));
    given.engine.set_decider(Box::new(decider), seconds(2));
    given.host.serve_recording(82, ConnectResult::Now, SILENT);
    connect(&mut given);
    assert_eq!(given.host.open(), 1);
    send(&mut given, 0, &hello(PROXIED));
    assert_eq!(received(&given), hello(PROXIED));
    events.had(&[
        "opened to 203.0.113.7:82",
        "decided Redirect",
        "name files.example",
        "proven Some(Rule(1))",
    ]);
}
