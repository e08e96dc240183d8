//! Tests of connections that have to prove a name: rules with `/tls` and `/tls-strict`.

mod refused;
mod responses;
mod routes;
mod rules;

use pontoon_engine::Egress;
use pontoon_engine::decider::{Answer, Denial, Verdict};
use pontoon_engine::egress::{EgressRule, RefusedFlows};
use pontoon_names::client_hello::LIMIT;
use pontoon_simnet::decider::ScriptedDecider;
use pontoon_test_support::client_hello::{Hello, records, server_name};

use super::flow_events::{Recorder, recorded};
use super::*;

const NAME: &str = "api.example.org";
const RULE: &str = "allow api.example.org:80/tls";
const STRICT: &str = "allow api.example.org:80/tls-strict";
const PATIENCE: Duration = seconds(5);

/// Returns the first record of a TLS client that names a server.
fn hello(name: &str) -> Vec<u8> {
    hello_of(&Hello::new(name))
}

fn hello_of(hello: &Hello) -> Vec<u8> {
    records(&hello.message(), &[LIMIT])
}

fn rules(lines: &[&str]) -> Vec<EgressRule> {
    lines.iter().map(|line| line.parse().expect("a rule")).collect()
}

fn labels(name: &str) -> Vec<u8> {
    let label = |label: &str| [&[label.len() as u8], label.as_bytes()].concat();
    let labels: Vec<u8> = name.split('.').flat_map(label).collect();
    [&labels[..], &[0]].concat()
}

/// Returns a DNS query for records of a type.
fn query(name: &str, kind: u16) -> Vec<u8> {
    let head = [0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    [&head[..], &labels(name), &kind.to_be_bytes(), &[0, 1]].concat()
}

/// Sends a query of the guest. The response has one record of the queried type with this content. Returns the response that the
/// guest has received.
fn ask(given: &mut Given, name: &str, kind: u16, ttl: u32, content: &[u8]) -> Vec<u8> {
    let question = query(name, kind);
    let mut response = question.clone();
    (response[2], response[7]) = (0x81, 1);
    response.extend([0xc0, 12]);
    response.extend(kind.to_be_bytes());
    response.extend([0, 1]);
    response.extend(ttl.to_be_bytes());
    response.extend(u16::try_from(content.len()).expect("short").to_be_bytes());
    response.extend(content);
    given.host.answer_query(response);
    let dns = config(1500).plan.v4.and_then(|v4| v4.dns).expect("a forwarder");
    given.packet_up(&Packet::Udp(Datagram {
        from: (GUEST_V4, 5353).into(),
        to: (dns, 53).into(),
        payload: question,
    }));
    given.pass(millis(1));
    match <[Packet; 1]>::try_from(given.take()) {
        Ok([Packet::Udp(response)]) => response.payload,
        other => panic!("{other:?} is no response"),
    }
}

/// Has the guest receive the address of the server for `name`.
fn resolve(given: &mut Given, name: &str, ttl: u32) {
    ask(given, name, 1, ttl, &SERVER_V4.octets());
}

/// Returns an engine with these rules, whose guest has resolved [`NAME`], and whose server records what it receives.
fn with_rules(lines: &[&str], script: Script, host: HostPlan) -> (Given, Recorder) {
    let config = Config {
        egress: Egress::new(&rules(lines)),
        resolvers: vec![(SERVER_V4, 53).into()],
        ..config(1500)
    };
    let (mut given, events) = recorded(Given::new(config, PLAIN, host));
    given.host.serve_recording(PORT, ConnectResult::Now, script);
    resolve(&mut given, NAME, 60);
    given.forget_counters();
    (given, events)
}

/// Completes the guest's handshake. The sequence numbers are those of [`Given::open`].
fn connect(given: &mut Given) {
    given.up(syn());
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    given.quiet();
    given.forget_counters();
}

/// Returns an engine with an established connection that has to prove [`NAME`].
fn open(lines: &[&str]) -> (Given, Recorder) {
    let (mut given, events) = with_rules(lines, SILENT, HostPlan::default());
    connect(&mut given);
    events.had(&["opened"]);
    (given, events)
}

/// Sends data of the guest from the offset `at` of its stream on.
fn send(given: &mut Given, at: usize, data: &[u8]) {
    let mut at = at;
    for data in data.chunks(1460) {
        given.up(up(ACK, seq(at), 1).carrying(data.to_vec()));
        at += data.len();
    }
}

fn seq(at: usize) -> u32 {
    1001 + u32::try_from(at).expect("short")
}

/// Returns what the server has received.
fn received(given: &Given) -> Vec<u8> {
    given.host.recorded().collect::<Vec<_>>().concat()
}

/// Checks that the guest was sent a reset, perhaps after acknowledgements, the server has received nothing but a reset, and
/// no state is left.
#[track_caller]
fn is_reset(given: &mut Given) {
    let mut out = given.take();
    match out.pop() {
        Some(Packet::Tcp(reset)) => assert!(reset.flags.has(RST), "{reset:?}"),
        other => panic!("{other:?} is no reset"),
    }
    for packet in out {
        let Packet::Tcp(segment) = packet else {
            panic!("{packet:?} is no segment");
        };
        assert!(segment.flags == ACK && segment.payload.is_empty(), "{segment:?}");
    }
    assert_eq!(received(given), [0; 0]);
    given.pass(millis(1));
    let ends: Vec<_> = given
        .host
        .reports()
        .filter_map(|report| report.app.and_then(|app| app.outcome()))
        .collect();
    assert_eq!(ends, [ConnectionEnd::Reset]);
    assert_eq!(
        (
            given.engine.flows(),
            given.host.open(),
            given.engine.proving(),
            given.engine.pool_in_use()
        ),
        (0, 0, 0, 0)
    );
}

#[test]
fn hello_divided_at_each_octet_is_sent_when_it_is_complete() {
    let hello = hello(NAME);
    for cut in 1..hello.len() {
        let (mut given, events) = open(&[RULE]);
        send(&mut given, 0, &hello[..cut]);
        given.down(down(ACK, 1, seq(cut)));
        given.quiet();
        assert_eq!((received(&given), given.engine.proving()), (vec![], 1), "{cut}");
        events.had(&[]);
        send(&mut given, cut, &hello[cut..]);
        given.down(down(ACK, 1, seq(hello.len())));
        given.quiet();
        assert_eq!(
            (received(&given), given.engine.proving()),
            (hello.clone(), 0),
            "{cut}"
        );
        events.had(&["name api.example.org", "proven Some(Rule(0))"]);
        given.counted(|counters| {
            counters.frames_up += 2;
            counters.frames_down += 2;
            counters.tls_proven += 1;
        });
        // The connection is like any other.
        send(&mut given, hello.len(), b"request");
        assert_eq!(received(&given), [&hello[..], b"request"].concat());
    }
}

#[test]
fn octets_received_one_by_one_and_in_the_wrong_order_are_sent_in_order() {
    let stream = [hello(NAME), b"early data".to_vec()].concat();
    let (mut given, events) = open(&[RULE]);
    for (at, octet) in stream.iter().enumerate() {
        send(&mut given, at, &[*octet]);
    }
    assert_eq!(received(&given), stream);
    events.had(&["name api.example.org", "proven Some(Rule(0))"]);

    let (mut given, _) = open(&[RULE]);
    for (at, data) in stream.chunks(20).enumerate().skip(1) {
        send(&mut given, at * 20, data);
        assert_eq!(received(&given), [0; 0]);
    }
    send(&mut given, 0, &stream[..20]);
    assert_eq!(received(&given), stream);
    given.take();
    given.quiet();
    assert_eq!(given.engine.pool_in_use(), 0);
}

#[test]
fn spellings_of_the_name_are_accepted() {
    for (rule, name, shown) in [
        (RULE, "API.Example.ORG", "api.example.org"),
        (RULE, "api.example.org.", "api.example.org"),
        ("allow *.example.org:80/tls", "api.example.org", "api.example.org"),
        (STRICT, "api.example.org", "api.example.org"),
    ] {
        let (mut given, events) = open(&[rule]);
        send(&mut given, 0, &hello(name));
        assert_eq!(received(&given), hello(name));
        events.had(&[&format!("name {shown}"), "proven Some(Rule(0))"]);
    }
    let munich = "xn--mnchen-3ya.example";
    let rule = format!("allow {munich}:80/tls");
    let (mut given, events) = with_rules(&[&rule], SILENT, HostPlan::default());
    resolve(&mut given, munich, 60);
    connect(&mut given);
    send(&mut given, 0, &hello("XN--Mnchen-3ya.example"));
    assert!(!received(&given).is_empty());
    events.had(&["opened", &format!("name {munich}"), "proven Some(Rule(0))"]);
}

#[test]
fn long_name_is_reported_whole() {
    let name = ["a"; 127].join(".");
    let rule = format!("allow {name}:80/tls");
    let (mut given, events) = with_rules(&[&rule], SILENT, HostPlan::default());
    resolve(&mut given, &name, 60);
    connect(&mut given);
    send(&mut given, 0, &hello(&name));
    assert_eq!(received(&given), hello(&name));
    let parts: Vec<String> = name
        .as_bytes()
        .chunks(32)
        .map(|part| format!("name {}", String::from_utf8_lossy(part)))
        .collect();
    let mut expected = vec!["opened"];
    expected.extend(parts.iter().map(String::as_str));
    expected.push("proven Some(Rule(0))");
    events.had(&expected);
}

#[test]
fn reset_of_the_guest_ends_the_proof() {
    let (mut given, events) = open(&[RULE]);
    send(&mut given, 0, &hello(NAME)[..30]);
    given.take();
    given.up(up(RST, seq(30), 0));
    given.quiet();
    assert_eq!((given.engine.flows(), given.engine.proving()), (0, 0));
    assert_eq!(received(&given), [0; 0]);
    events.had(&["closed guest-reset, 30 up, 0 down"]);
}

#[test]
fn data_of_the_server_waits_for_the_proof() {
    for script in [Script::sending(100), Script::source(100)] {
        let (mut given, _) = with_rules(&[RULE], script, HostPlan::default());
        connect(&mut given);
        given.pass(seconds(4));
        given.quiet();
        let hello = hello(NAME);
        send(&mut given, 0, &hello);
        given.pass(millis(50));
        assert_eq!(take_bytes(&mut given), 100);
        assert_eq!(received(&given), hello);
    }
    let (mut given, events) = with_rules(&[RULE], Script::source(100), HostPlan::default());
    connect(&mut given);
    given.pass(PATIENCE + millis(5));
    let reset = take_last(&mut given);
    assert!(reset.flags.has(RST));
    given.quiet();
    events.had(&["opened", "timeout Some(Rule(0))", "closed unproven, 0 up, 0 down"]);
}

#[test]
fn reset_of_the_server_before_the_proof_resets_the_guest() {
    let resetting = Script {
        end: FinalAction::Reset(0),
        ..Script::SINK
    };
    let (mut given, events) = with_rules(&[RULE], resetting, HostPlan::default());
    given.up(syn());
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    given.pass(millis(10));
    let reset = take_last(&mut given);
    assert!(reset.flags.has(RST));
    assert_eq!((given.engine.flows(), given.engine.proving()), (0, 0));
    events.had(&["opened", "closed peer-reset, 0 up, 0 down"]);
}

#[test]
fn held_data_is_sent_as_the_host_accepts_it() {
    let narrow = HostPlan {
        send_buffer: 50,
        ..HostPlan::default()
    };
    let (mut given, _) = with_rules(&[RULE], SILENT, narrow);
    connect(&mut given);
    let stream = [&hello(NAME)[..], &[7; 3000]].concat();
    send(&mut given, 0, &stream);
    given.up(up(ACK.and(FIN), seq(stream.len()), 1));
    given.pass(seconds(6));
    given.take();
    assert_eq!(received(&given), stream);
    assert_eq!(given.engine.proving(), 0);
}

#[test]
fn window_is_limited_until_the_proof() {
    let (mut given, _) = with_rules(&[RULE], SILENT, HostPlan::default());
    given.up(Segment {
        window_scale: Some(7),
        ..syn()
    });
    let answer = given.take_one();
    let most = LIMIT + 256;
    assert_eq!(usize::from(answer.window), most);
    let ack = answer.seq.wrapping_add(1);
    let up = |seq, payload: Vec<u8>| {
        Packet::Tcp(
            Segment::between(GUEST, SERVER)
                .with(ACK, seq, ack)
                .carrying(payload),
        )
    };
    given.packet_up(&up(1001, Vec::new()));
    // A record of a long hello, octet by octet: the right edge of the window does not move.
    let long = records(&[&[1, 0, 0x3f, 0x00][..], &[0; 16_000]].concat(), &[LIMIT]);
    for (at, octet) in long.iter().take(700).enumerate() {
        given.packet_up(&up(seq(at), vec![*octet]));
        let answer = given.take_one();
        let edge = (answer.ack - 1001) as usize + (usize::from(answer.window) << 8);
        assert!(edge <= most && edge > LIMIT, "{edge}");
    }
}

#[test]
fn connections_beyond_the_limit_are_reset() {
    let (mut given, _) = with_rules(&[RULE], SILENT, HostPlan::default());
    let open = |given: &mut Given, port| {
        given.host.serve_recording(PORT, ConnectResult::Now, SILENT);
        given.up(dial(port, PORT));
        let answer = given.take_one();
        assert_eq!(answer.flags, SYN.and(ACK));
        let ack = answer.seq.wrapping_add(1);
        let segment = Segment::between((GUEST_V4, port).into(), SERVER).with(ACK, 1001, ack);
        given.packet_up(&Packet::Tcp(segment.clone()));
        segment
    };
    let first = open(&mut given, 1);
    for port in 2..=1024 {
        open(&mut given, port);
    }
    given.quiet();
    assert_eq!(given.engine.proving(), 1024);
    open(&mut given, 1025);
    assert!(given.take_one().flags.has(RST));
    assert_eq!(given.engine.counters().tls_refused_limit, 1);
    // A connection that is proved makes room.
    given.packet_up(&Packet::Tcp(first.carrying(hello(NAME))));
    given.take();
    assert_eq!(given.engine.proving(), 1023);
    open(&mut given, 1026);
    given.quiet();
    given.pass(PATIENCE + millis(5));
    assert_eq!((given.engine.proving(), given.engine.flows()), (0, 1));
    assert_eq!(given.engine.counters().tls_refused_timeout, 1024);
}

#[test]
fn datagrams_to_the_same_port_are_refused_at_once() {
    let (mut given, events) = with_rules(&[RULE], SILENT, HostPlan::default());
    for (port, kind, code, reason) in [(80, 3, 3, "tls-only"), (81, 3, 13, "unlisted")] {
        given.packet_up(&Packet::Udp(Datagram {
            from: (GUEST_V4, 6000).into(),
            to: (SERVER_V4, port).into(),
            payload: vec![1; 1200],
        }));
        let out = given.take();
        let [Packet::Icmp(icmp)] = &out[..] else {
            panic!("{out:?}");
        };
        assert_eq!((icmp.kind, icmp.code), (kind, code), "{port}");
        events.had(&[&format!("refused {reason}")]);
    }
    given.counted(|counters| {
        counters.frames_up += 2;
        counters.frames_down += 2;
        counters.icmp_errors_down += 2;
        counters.policy_refused += 2;
        counters.tls_udp_refused += 1;
    });
}
