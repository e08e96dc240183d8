//! Tests of names that the upstream proxy resolves (`--proxy-dns`).

use std::sync::Arc;

use pontoon_engine::proxy::{Proxy, ProxyDestinations, ProxyNames};
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

/// Sends a query, and returns the response code and the address of the response.
#[track_caller]
fn ask(given: &mut Given, name: &str, kind: u16) -> (u8, Option<IpAddr>) {
    let plan = config(1500).plan.v4;
    let dns = plan.and_then(|v4| v4.dns).expect("an address of the forwarder");
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
        "a.internal.example",
    ] {
        assert_eq!(ask(&mut given, name, A), (2, None), "{name}");
    }
    assert!(ask(&mut given, "internal.example", A).1.is_some());
}

#[test]
fn address_that_stands_for_no_name_is_refused() {
    let mut given = resolving(&[]);
    is_refused(
        &mut given,
        &syn_between((GUEST_V4, 1).into(), ([198, 18, 0, 1], 80).into()),
    );
    let (_, Some(address)) = ask(&mut given, "a.example", A) else {
        panic!("no address");
    };
    assert_eq!(address, IpAddr::from([198, 18, 0, 1]));
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
