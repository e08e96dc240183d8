//! Tests of names that the upstream proxy resolves (`--proxy-dns`).

use std::sync::Arc;

use pontoon_engine::proxy::{LIFETIME, MOST_NAMES, NETWORKS, Proxy, ProxyDestinations, ProxyNames};
use pontoon_simnet::host::ProxyExchange;

use super::proxies::http;
use super::*;

const PROXY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), PORT);

/// Types of DNS records.
const A: u16 = 1;
const TXT: u16 = 16;
const AAAA: u16 = 28;
const HTTPS: u16 = 65;

/// Returns an engine whose proxy resolves all names but those of `direct`, and whose resolver answers nothing.
fn resolving(direct: &[&str]) -> Given {
    let direct: Vec<_> = direct.iter().map(|text| text.parse().expect("a rule")).collect();
    let proxy = Proxy {
        destinations: ProxyDestinations::new(&[], &direct),
        names: Some(ProxyNames::default()),
        ..http(&[PROXY])
    };
    let config = Config {
        proxy: Some(Arc::new(proxy)),
        ..config(1500)
    };
    Given::new(config, PLAIN, HostPlan::default())
}

fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).expect("a label"));
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(kind.to_be_bytes());
    message.extend([0, 1]);
    message
}

/// Returns the address of the DNS forwarder.
fn forwarder() -> Ipv4Addr {
    let plan = config(1500).plan.v4;
    plan.and_then(|v4| v4.dns).expect("an address of the forwarder")
}

/// Sends a query, and returns the response code and the address of the response.
#[track_caller]
fn ask(given: &mut Given, name: &str, kind: u16) -> (u8, Option<IpAddr>) {
    let dns = forwarder();
    let sent = query(name, kind);
    given.packet_up(&Packet::Udp(Datagram {
        from: GUEST,
        to: (dns, 53).into(),
        payload: sent.clone(),
    }));
    let out = given.take();
    let [Packet::Udp(datagram)] = &out[..] else {
        panic!("{out:?}");
    };
    let message = &datagram.payload;
    assert_eq!((message[0], message[1], message[2] & 0x80), (0x12, 0x34, 0x80));
    assert_eq!(message[12..sent.len()], sent[12..]);
    let address = match &message[sent.len()..] {
        [] => None,
        [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, a, b, c, d] => Some([*a, *b, *c, *d].into()),
        [0xc0, 12, 0, 28, 0, 1, 0, 0, 0, 60, 0, 16, v6 @ ..] => {
            Some(IpAddr::from(<[u8; 16]>::try_from(v6).expect("16 bytes")))
        }
        other => panic!("{other:02x?}"),
    };
    assert_eq!(message[7], u8::from(address.is_some()));
    (message[3] & 0xf, address)
}

#[test]
fn name_is_sent_to_the_proxy_without_a_resolver() {
    for kind in [A, AAAA] {
        let mut given = resolving(&[]);
        let (0, Some(address)) = ask(&mut given, "WWW.Example.org", kind) else {
            panic!("no address");
        };
        assert_eq!(ask(&mut given, "www.example.org", kind), (0, Some(address)));
        assert_eq!(given.engine.counters().dns_proxied, 2);
        let request: &[u8] = b"CONNECT www.example.org:443 HTTP/1.1\r\nHost: www.example.org:443\r\n\r\n";
        let answer = b"HTTP/1.1 200 OK\r\n\r\n";
        let exchange = ProxyExchange {
            request_len: request.len(),
            answer: answer.to_vec(),
        };
        let script = Script::sending(answer.len() as u64);
        given.host.serve_proxy(PORT, ConnectResult::Now, script, exchange);
        let own: IpAddr = if kind == A {
            GUEST_V4.into()
        } else {
            GUEST_V6.into()
        };
        given.up(syn_between((own, 1).into(), (address, 443).into()));
        given.pass(millis(5));
        assert_eq!(given.host.proxy_request(PORT), request);
        assert_eq!(given.take_one().flags, SYN.and(ACK));
    }
}

#[test]
fn other_records_of_a_proxied_name_do_not_exist() {
    let mut given = resolving(&[]);
    assert_eq!(ask(&mut given, "www.example.org", HTTPS), (0, None));
    // The resolver is asked for others, and there is none.
    assert_eq!(ask(&mut given, "www.example.org", TXT), (2, None));
}

#[test]
fn family_that_the_guest_cannot_reach_has_no_address() {
    let mut given = resolving(&[]);
    given.engine.set_ipv6_route(false);
    assert_eq!(ask(&mut given, "www.example.org", AAAA), (0, None));
    assert!(ask(&mut given, "www.example.org", A).1.is_some());
}

#[test]
fn names_of_the_host_and_excepted_names_are_not_resolved_by_the_proxy() {
    let mut given = resolving(&["*.internal.example", "192.0.2.0/24"]);
    for name in [
        "localhost",
        "a.localhost",
        "127.0.0.1",
        "0x7f.1",
        "127.0.0.0x1",
        "0xA9FEA9FE",
        "a.internal.example",
    ] {
        assert_eq!(ask(&mut given, name, A), (2, None), "{name}");
    }
    assert!(ask(&mut given, "internal.example", A).1.is_some());
}

#[test]
fn address_that_stands_for_no_name_is_refused() {
    let mut given = resolving(&[]);
    let (_, Some(IpAddr::V4(address))) = ask(&mut given, "a.example", A) else {
        panic!("no address");
    };
    assert!(NETWORKS[0].contains(&IpAddr::from(address)), "{address}");
    let next = Ipv4Addr::from_bits(address.to_bits() + 1);
    is_refused(&mut given, &syn_between((GUEST_V4, 1).into(), (next, 80).into()));
    given.pass(seconds(3601));
    given.take();
    is_refused(
        &mut given,
        &syn_between((GUEST_V4, 1).into(), (address, 80).into()),
    );
    assert_eq!(given.host.calls(), 0);
}

#[test]
fn rule_with_a_domain_permits_the_address_that_stands_for_it() {
    let mut given = resolving(&[]);
    given.set_rules(&["allow a.example:443".parse().unwrap()]);
    given.host.serve(PORT, ConnectResult::Never, Script::SINK);
    for (name, permitted) in [("a.example", true), ("b.example", false)] {
        let (_, Some(address)) = ask(&mut given, name, A) else {
            panic!("no address");
        };
        given.up(syn_between((GUEST_V4, 1).into(), (address, 443).into()));
        assert_eq!(given.take().is_empty(), permitted, "{name}");
    }
}

#[test]
fn datagrams_to_an_address_that_stands_for_a_name_are_refused() {
    let mut given = resolving(&["*:443/udp"]);
    let (_, Some(address)) = ask(&mut given, "a.example", A) else {
        panic!("no address");
    };
    given.packet_up(&Packet::Udp(Datagram {
        from: GUEST,
        to: (address, 443).into(),
        payload: vec![0; 10],
    }));
    assert!(matches!(&given.take()[..], [Packet::Icmp(icmp)] if icmp.code == 13));
}

/// Returns the IPv4 address that stands for a name.
#[track_caller]
fn resolved(given: &mut Given, name: &str) -> IpAddr {
    match ask(given, name, A) {
        (0, Some(address)) => address,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn rule_with_a_domain_matches_each_of_its_names() {
    let mut given = resolving(&[]);
    given.set_rules(&["deny *.evil.example".parse().unwrap()]);
    let first = resolved(&mut given, "db.evil.example");
    // More names than a rule learns addresses.
    for number in 0..1_100 {
        resolved(&mut given, &format!("n{number}.evil.example"));
    }
    is_refused(
        &mut given,
        &syn_between((GUEST_V4, 1).into(), (first, 443).into()),
    );
    given.host.serve(PORT, ConnectResult::Never, Script::SINK);
    let other = resolved(&mut given, "evil.example");
    given.up(syn_between((GUEST_V4, 1).into(), (other, 443).into()));
    given.quiet();
}

#[test]
fn address_of_a_former_name_permits_no_other_name() {
    let mut given = resolving(&[]);
    given.set_rules(&["allow good.example:443".parse().unwrap()]);
    let good = resolved(&mut given, "good.example");
    given.host.serve(PORT, ConnectResult::Never, Script::SINK);
    given.up(syn_between((GUEST_V4, 1).into(), (good, 443).into()));
    given.quiet();
    // The connection renews the use of its address.
    let names = MOST_NAMES - 1;
    for number in 0..names {
        resolved(&mut given, &format!("n{number}.example"));
    }
    assert_eq!(ask(&mut given, "evil.example", A), (2, None), "the table is full");
    given.pass(LIFETIME);
    given.take();
    let evil = resolved(&mut given, "evil.example");
    assert_ne!(evil, good);
    is_refused(&mut given, &syn_between((GUEST_V4, 2).into(), (evil, 443).into()));
}

#[test]
fn response_with_an_address_that_stands_for_a_name_is_a_failure() {
    let direct = ProxyDestinations::new(&[], &["*.direct.example".parse().unwrap()]);
    let proxy = Proxy {
        destinations: direct,
        names: Some(ProxyNames::default()),
        ..http(&[PROXY])
    };
    let config = Config {
        proxy: Some(Arc::new(proxy)),
        resolvers: vec![(SERVER_V4, 53).into()],
        ..config(1500)
    };
    let mut given = Given::new(config, PLAIN, HostPlan::default());
    given.set_rules(&["allow *.direct.example:443".parse().unwrap()]);
    let reserved = resolved(&mut given, "intranet.evil.example");
    for (address, rcode) in [(reserved, 2), (SERVER_V4.into(), 0)] {
        let question = query("www.direct.example", A);
        let mut response = question.clone();
        (response[2], response[7]) = (0x81, 1);
        response.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        let IpAddr::V4(v4) = address else {
            panic!("{address}");
        };
        response.extend(v4.octets());
        given.host.answer_query(response);
        let dns = forwarder();
        given.packet_up(&Packet::Udp(Datagram {
            from: GUEST,
            to: (dns, 53).into(),
            payload: question,
        }));
        given.pass(millis(1));
        match &given.take()[..] {
            [Packet::Udp(response)] => assert_eq!(response.payload[3] & 0xf, rcode, "{address}"),
            other => panic!("{other:?} is no response"),
        }
    }
    assert_eq!(given.engine.counters().dns_reserved, 1);
    is_refused(
        &mut given,
        &syn_between((GUEST_V4, 1).into(), (reserved, 443).into()),
    );
}
