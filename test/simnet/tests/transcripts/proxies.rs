//! Tests of connections through an upstream proxy.

use std::sync::Arc;

use pontoon_engine::proxy::{Proxy, ProxyDestinations};
use pontoon_proxy::{Credentials, Protocol as ProxyProtocol};
use pontoon_simnet::app::TransferPace;
use pontoon_simnet::host::ProxyExchange;

use super::flow_events::{Recorder, recorded};
use super::*;

/// Address of the proxy, at the port of the simulated server.
const PROXY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), PORT);

/// Request for a connection to [`SERVER`], and answers.
pub(super) const REQUEST: &[u8] = b"CONNECT 203.0.113.7:80 HTTP/1.1\r\nHost: 203.0.113.7:80\r\n\r\n";
pub(super) const ANSWER: &[u8] = b"HTTP/1.1 200 Connection established\r\nVia: 1.1 proxy\r\n\r\n";
const SOCKS_REQUEST: &[u8] = b"\x05\x01\x00\x05\x01\x00\x01\xcb\x00\x71\x07\x00\x50";
const SOCKS_ANSWER: &[u8] = b"\x05\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00";

/// The pace of a peer that sends one octet in each millisecond.
const SLOW: TransferPace = TransferPace {
    chunk: 1,
    every: Duration::from_millis(1),
};

/// Returns a proxy for all destinations, without credentials.
pub(super) fn http(addresses: &[SocketAddr]) -> Proxy {
    Proxy {
        protocol: ProxyProtocol::Http,
        addresses: addresses.to_vec(),
        credentials: None,
        destinations: ProxyDestinations::new(&[], &[]),
        names: None,
    }
}

fn socks() -> Proxy {
    Proxy {
        protocol: ProxyProtocol::Socks5,
        ..http(&[PROXY])
    }
}

/// Returns an engine with this proxy, whose peer on the host expects `request` and sends `answer` and then the bytes of
/// `script`.
fn proxied(proxy: Proxy, request: &[u8], answer: &[u8], script: Script) -> Given {
    let config = Config {
        proxy: Some(Arc::new(proxy)),
        ..config(1500)
    };
    let mut given = Given::new(config, PLAIN, HostPlan::default());
    let exchange = ProxyExchange {
        request_len: request.len(),
        answer: answer.to_vec(),
    };
    let script = Script {
        send: script.send + answer.len() as u64,
        ..script
    };
    given.host.serve_proxy(PORT, ConnectResult::Now, script, exchange);
    given
}

fn both() -> [(Proxy, &'static [u8], &'static [u8]); 2] {
    [
        (http(&[PROXY]), REQUEST, ANSWER),
        (socks(), SOCKS_REQUEST, SOCKS_ANSWER),
    ]
}

/// Sends the guest's SYN, and waits until the proxy has answered.
fn open(given: &mut Given) {
    given.up(syn());
    given.pass(millis(200));
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    given.pass(millis(1));
}

/// Checks that the guest's SYN was refused by a reset and nothing else, and no socket or flow is left.
#[track_caller]
fn reset_only(given: &mut Given) {
    assert_eq!(given.take_one(), refusal(&syn()));
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn syn_is_answered_after_the_proxy_has_established_the_connection() {
    for (proxy, request, answer) in both() {
        let (mut given, events) = recorded(proxied(proxy, request, answer, Script::SINK));
        given.up(syn());
        assert_eq!(given.host.proxy_request(PORT).first(), request.first());
        given.pass(millis(1));
        given.down(syn_ack());
        given.quiet();
        assert_eq!(given.host.proxy_request(PORT), request);
        given.counted(|counters| {
            one_each(counters);
            counters.tcp_opened += 1;
            counters.proxy_opened += 1;
        });
        events.had(&["opened to 192.0.2.1:80", "decided Proxy"]);
        given.up(up(ACK, 1001, 1));
        given.up(up(ACK.and(PSH), 1001, 1).carrying(Given::guest_bytes(0, 100)));
        given.pass(millis(100));
        given.up(up(ACK.and(FIN), 1101, 1));
        given.pass(millis(100));
        given.take();
        events.had(&[]);
        given.up(up(ACK, 1102, 2));
        events.had(&["closed guest-fin, 100 up, 0 down"]);
        assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    }
}

#[test]
fn octets_behind_the_answer_belong_to_the_connection() {
    for (proxy, request, answer) in both() {
        for write in [TransferPace::UNLIMITED, SLOW] {
            let script = Script {
                write,
                ..Script::sending(30)
            };
            let script = Script {
                end: FinalAction::AfterSending,
                ..script
            };
            let mut given = proxied(proxy_like(&proxy), request, answer, script);
            open(&mut given);
            let mut bytes = Vec::new();
            let mut has_fin = false;
            for packet in given.take() {
                let Packet::Tcp(segment) = packet else {
                    panic!("{packet:?}");
                };
                has_fin |= segment.flags.has(FIN);
                bytes.extend(segment.payload);
            }
            assert_eq!(bytes, Given::server_bytes(0, 30));
            assert!(has_fin, "the proxy's FIN is forwarded");
            // The direction to the server is still open.
            given.up(up(ACK.and(FIN), 1001, 32).carrying(Given::guest_bytes(0, 50)));
            given.pass(millis(100));
            let report = given.host.reports().last().unwrap();
            let app = report.app.unwrap();
            assert_eq!(app.received(), request.len() as u64 + 50);
            assert!(app.saw_end());
            assert_eq!(given.host.wrong(), [""; 0]);
        }
    }
}

/// Returns a proxy of the same protocol.
fn proxy_like(proxy: &Proxy) -> Proxy {
    Proxy {
        protocol: proxy.protocol,
        ..http(&proxy.addresses)
    }
}

#[test]
fn refusal_of_the_proxy_resets_the_guest_and_is_reported() {
    let cases: [(Proxy, &[u8], &str); 8] = [
        (
            http(&[PROXY]),
            b"HTTP/1.1 407 No\r\n\r\n",
            "the proxy requires credentials",
        ),
        (
            http(&[PROXY]),
            b"HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n",
            "the proxy answered with status 302 (Found)",
        ),
        (
            http(&[PROXY]),
            b"HTTP/1.1 407 No\r\nProxy-Authenticate: NTLM\r\n\r\n",
            "the proxy requires NTLM authentication, which is not supported",
        ),
        (
            http(&[PROXY]),
            b"SSH-2.0-x\r\n",
            "the answer of the proxy is not a response of HTTP/1.1",
        ),
        (
            socks(),
            b"HTTP/1.1 400 Bad",
            "the answer of the proxy is not an answer of SOCKS 5",
        ),
        (
            socks(),
            b"\x05\xff",
            "the proxy accepts none of the offered authentication methods",
        ),
        (
            socks(),
            b"\x05\x00\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00",
            "the proxy answered with code 5 (connection refused)",
        ),
        (
            Proxy {
                credentials: Some(Credentials::new("user".into(), "secret".into()).unwrap()),
                ..socks()
            },
            b"\x05\x02\x01\x01",
            "the proxy did not accept the credentials",
        ),
    ];
    for (proxy, answer, why) in cases {
        let given = proxied(proxy, &[0; 4096], answer, SILENT);
        let (mut given, events) = recorded(given);
        given.up(syn());
        given.pass(millis(50));
        reset_only(&mut given);
        let closed = format!("closed proxy-refused: {why}, 0 up, 0 down");
        events.had(&["opened to 192.0.2.1:80", "decided Proxy", &closed]);
        given.counted(|counters| {
            one_each(counters);
            counters.tcp_opened += 1;
            counters.proxy_refused += 1;
        });
    }
}

fn fails(given: &mut Given, events: &Recorder, why: &str) {
    reset_only(given);
    let closed = format!("closed {why}, 0 up, 0 down");
    events.had(&["opened to 192.0.2.1:80", "decided Proxy", &closed]);
}

#[test]
fn proxy_that_stalls_closes_or_resets_is_a_reset_to_the_guest() {
    for (proxy, request, answer) in both() {
        let part = &answer[..answer.len() - 1];
        let stalled = proxied(proxy_like(&proxy), request, part, SILENT);
        let (mut given, events) = recorded(stalled);
        given.up(syn());
        given.pass(millis(9_999));
        given.quiet();
        given.pass(millis(2));
        fails(&mut given, &events, "proxy-failed: timed out");

        let closed = proxied(proxy_like(&proxy), request, part, Script::source(0));
        let (mut given, events) = recorded(closed);
        given.up(syn());
        given.pass(millis(50));
        fails(
            &mut given,
            &events,
            "proxy-refused: the proxy closed the connection without an answer",
        );

        let end = FinalAction::Reset(2);
        let reset = proxied(
            proxy,
            request,
            part,
            Script {
                end,
                write: SLOW,
                ..Script::SINK
            },
        );
        let (mut given, events) = recorded(reset);
        given.up(syn());
        given.pass(millis(50));
        fails(&mut given, &events, "proxy-failed: connection reset");
    }
}

#[test]
fn unreachable_proxy_is_a_reset_without_an_icmp_error() {
    let failures = [
        (ConnectResult::Fail(Failure::Refused), Failure::Refused),
        (
            ConnectResult::FailAfter(millis(3), Failure::HostUnreachable),
            Failure::HostUnreachable,
        ),
    ];
    for (result, failure) in failures {
        let (mut given, events) = recorded(proxied(http(&[PROXY]), REQUEST, ANSWER, Script::SINK));
        given.host.serve(PORT, result, Script::SINK);
        given.up(syn());
        given.pass(millis(10));
        fails(&mut given, &events, &format!("proxy-failed: {failure}"));
        given.counted(|counters| {
            one_each(counters);
            counters.tcp_opened += 1;
            counters.proxy_failed += 1;
        });
    }
}

#[test]
fn next_address_of_the_proxy_is_tried() {
    let failures = [
        ConnectResult::Fail(Failure::Refused),
        ConnectResult::FailAfter(millis(3), Failure::Refused),
    ];
    for result in failures {
        let second = SocketAddr::new(PROXY.ip(), 81);
        let mut given = proxied(http(&[PROXY, second]), REQUEST, ANSWER, Script::SINK);
        let exchange = ProxyExchange {
            request_len: REQUEST.len(),
            answer: ANSWER.to_vec(),
        };
        let script = Script::sending(ANSWER.len() as u64);
        given.host.serve(PORT, result, Script::SINK);
        given.host.serve_proxy(81, ConnectResult::Now, script, exchange);
        open(&mut given);
        given.quiet();
        assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
    }
}

#[test]
fn guest_may_retransmit_its_syn_and_reset_the_connection_during_the_handshake() {
    let mut given = proxied(http(&[PROXY]), REQUEST, b"HTTP/1.1 ", SILENT);
    given.up(syn());
    given.pass(millis(100));
    given.up(syn());
    given.pass(seconds(3));
    given.up(syn());
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
    given.up(up(RST, 1001, 0));
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    assert_eq!(given.engine.counters().tcp_reset_by_guest, 1);
}

#[test]
fn rule_that_refuses_the_destination_during_the_handshake_resets_the_connection() {
    let mut given = proxied(http(&[PROXY]), REQUEST, b"HTTP/1.1 ", SILENT);
    given.up(syn());
    given.pass(millis(100));
    given.set_rules(&["deny 203.0.113.7".parse().unwrap()]);
    let reset = given.take_one();
    assert_eq!((reset.flags, reset.ack), (RST.and(ACK), 1001));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    given.up(syn());
    reset_only(&mut given);
}

#[test]
fn rules_are_compared_with_the_destination_and_not_with_the_proxy() {
    let mut given = proxied(http(&[PROXY]), REQUEST, ANSWER, Script::SINK);
    given.set_rules(&["allow 203.0.113.7:80/tcp".parse().unwrap()]);
    open(&mut given);
    // The proxy itself, a further destination.
    for to in [PROXY, (SERVER_V4, 81).into()] {
        is_refused(&mut given, &syn_between((GUEST_V4, 2).into(), to));
    }
}

#[test]
fn guest_does_not_reach_a_proxy_of_the_host_at_another_address_of_the_host() {
    let own = IpAddr::from([198, 51, 100, 1]);
    let mapped = Ipv4Addr::new(10, 0, 2, 9);
    let loopback = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT);
    let config = Config {
        proxy: Some(Arc::new(http(&[loopback]))),
        host_addresses: true,
        mapped_host: vec![mapped.into()],
        host: [Some(own), None],
        ..config(1500)
    };
    let mut given = given(config, HostPlan::default());
    given.set_owned(&[own]);
    for to in [(own, PORT).into(), (mapped, PORT).into()] {
        is_refused(&mut given, &syn_between((GUEST_V4, 1).into(), to));
    }
    assert_eq!(given.host.calls(), 0);
}

#[test]
fn guest_does_not_reach_the_proxy_itself() {
    let loopback = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT);
    let gateway = Ipv4Addr::new(10, 0, 2, 2);
    let config = Config {
        proxy: Some(Arc::new(http(&[PROXY, loopback]))),
        host_loopback: vec![gateway.into()],
        ..config(1500)
    };
    let mut given = given(config, HostPlan::default());
    for to in [PROXY, (gateway, PORT).into()] {
        is_refused(&mut given, &syn_between((GUEST_V4, 1).into(), to));
    }
    assert_eq!(given.host.calls(), 0);
    // Other ports of the host's loopback do not use the proxy.
    is_answered(
        &mut given,
        &syn_between((GUEST_V4, 1).into(), (gateway, 82).into()),
    );
}

#[test]
fn only_the_destinations_of_the_rules_use_the_proxy() {
    let rule = |text: &str| [text.parse().unwrap()];
    let cases = [
        (
            ProxyDestinations::new(&rule("203.0.113.7:80"), &[]),
            [true, false],
        ),
        (
            ProxyDestinations::new(&rule("203.0.113.7"), &rule("*:81")),
            [true, false],
        ),
        (
            ProxyDestinations::new(&[], &rule("203.0.113.0/24:81")),
            [true, false],
        ),
        (
            ProxyDestinations::new(&rule("198.51.100.0/24"), &[]),
            [false, false],
        ),
    ];
    for (destinations, expected) in cases {
        for (port, uses) in [80, 81].into_iter().zip(expected) {
            let proxy = Proxy {
                destinations: destinations.clone(),
                ..http(&[(PROXY.ip(), 82).into()])
            };
            let config = Config {
                proxy: Some(Arc::new(proxy)),
                ..config(1500)
            };
            let mut given = given(config, HostPlan::default());
            given.host.serve(82, ConnectResult::Never, Script::SINK);
            given.up(dial(1, port));
            assert_eq!(given.take().is_empty(), uses, "port {port}");
        }
    }
}

#[test]
fn datagrams_and_echo_requests_to_proxied_destinations_are_refused() {
    let direct = ["203.0.113.7:9/udp".parse().unwrap()];
    let proxy = Proxy {
        destinations: ProxyDestinations::new(&[], &direct),
        ..http(&[PROXY])
    };
    let (mut given, events) = recorded(proxied(proxy, REQUEST, ANSWER, Script::SINK));
    let mut send = |port| {
        given.packet_up(&Packet::Udp(Datagram {
            from: GUEST,
            to: (SERVER_V4, port).into(),
            payload: vec![0; 10],
        }));
        given.pass(millis(5));
        given.take()
    };
    let refused =
        |out: Vec<Packet>| matches!(&out[..], [Packet::Icmp(icmp)] if (icmp.kind, icmp.code) == (3, 13));
    assert!(refused(send(8)));
    // The same address at a port that does not use the proxy, and again.
    assert!(matches!(&send(9)[..], [Packet::Udp(_)]));
    assert!(refused(send(8)));
    events.had(&["refused proxy", "opened", "refused proxy"]);
    assert_eq!(given.engine.counters().proxy_unsupported, 2);
}
