use super::*;
use crate::config::{Protocol, Published};

/// Returns UDP endpoints with these UDP sockets of the host published as the guest's port 53.
pub(super) fn published(hosts: &[&str]) -> Nat {
    let mut nat = Nat::new();
    nat.world.net.config.published = hosts
        .iter()
        .map(|host| Published::new(Protocol::Udp, addr(host), 53))
        .collect();
    open(&mut nat);
    nat.world.forget();
    nat
}

/// Publishes the ports of the configuration.
fn open(nat: &mut Nat) {
    for (place, published) in (0..).zip(nat.world.net.config.published.clone()) {
        if published.protocol == Protocol::Udp {
            nat.udp.publish(place, published, &mut nat.world.ctx()).unwrap();
        }
    }
}

/// Ends the publication of the port at index `place`.
fn close(nat: &mut Nat, place: u32) {
    let published = nat.world.net.config.published[place as usize];
    nat.udp.unpublish(place, published, &mut nat.world.ctx());
}

/// Delivers a client's datagram to the host address `to`, and returns the source address that the guest sees.
fn ask(nat: &mut Nat, socket: usize, client: &str, to: &str) -> String {
    nat.world.forget();
    nat.world.host.queue(socket, client, Some(to), b"data", 4);
    nat.event(socket, READABLE);
    let down = nat.world.down();
    assert_eq!(nat.world.moved(), [("frames_down", 1), ("udp_down", 1)]);
    let [_, shown, ..] = down[0].split(' ').collect::<Vec<_>>()[..] else {
        panic!("{down:?}");
    };
    shown.to_owned()
}

#[test]
fn only_udp_ports_get_endpoints() {
    let mut nat = Nat::new();
    let port = |protocol, host| Published::new(protocol, addr(host), 53);
    nat.world.net.config.published = vec![
        port(Protocol::Tcp, "0.0.0.0:5353"),
        port(Protocol::Udp, "0.0.0.0:5353"),
        port(Protocol::Udp, "[::]:5353"),
    ];
    open(&mut nat);
    assert_eq!(nat.world.calls(), ["0: published 1", "1: published 2"]);
    assert_eq!(nat.world.net.flows, 2);
}

#[test]
fn port_published_while_running_replaces_the_guests_endpoint() {
    let mut nat = Nat::new();
    nat.send("10.0.2.15:53", "192.0.2.1:7");
    assert_eq!(nat.world.host.open_sockets(), 1);
    nat.world.net.config.published = vec![Published::new(Protocol::Udp, addr("0.0.0.0:5353"), 53)];
    open(&mut nat);
    assert_eq!((nat.world.host.open_sockets(), nat.world.net.flows), (1, 1));
    nat.world.forget();
    nat.send("10.0.2.15:53", "192.0.2.1:7");
    assert_eq!(nat.world.calls(), ["1: > 192.0.2.1:7 hop 63 5"]);
    close(&mut nat, 0);
    assert_eq!((nat.world.host.open_sockets(), nat.world.net.flows), (0, 0));
    nat.world.forget();
    nat.send("10.0.2.15:53", "192.0.2.1:7");
    assert_eq!(nat.world.host.open_sockets(), 1);
}

#[test]
fn unpublished_socket_is_removed_and_others_stay() {
    for (place, stays) in [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
        let mut nat = published(&["198.51.100.7:5353", "127.0.0.1:5353", "198.51.100.8:5353"]);
        // Clients have sent to each of the sockets.
        for socket in 0..3 {
            ask(&mut nat, socket, &format!("192.0.2.{socket}:7"), "198.51.100.7");
        }
        close(&mut nat, place);
        assert_eq!(
            (nat.world.host.open_sockets(), nat.world.net.flows),
            (2, 2),
            "{place}"
        );
        for client in 0..3 {
            nat.send("10.0.2.15:53", &format!("192.0.2.{client}:7"));
        }
        let places = [0, 1, 2].map(|place| {
            let of =
                |(_, endpoint): (u32, &crate::udp::UdpEndpoint<usize>)| endpoint.published == Some(place);
            nat.udp.endpoints.iter().any(of)
        });
        assert_eq!(
            [0, 1, 2].map(|place| places[place]),
            [0, 1, 2].map(|place| stays.contains(&place))
        );
        for place in stays {
            close(&mut nat, place);
        }
        assert_eq!((nat.world.host.open_sockets(), nat.world.net.flows), (0, 0));
    }
}

#[test]
fn client_is_answered_from_the_address_that_it_used() {
    for (host, client, guest, local_ip) in [
        ("0.0.0.0:5353", "192.0.2.1:999", "10.0.2.15:53", "198.51.100.7"),
        (
            "[::]:5353",
            "[2001:db8::1]:999",
            "[fd70:6f6e:746f::15]:53",
            "2001:db8::7",
        ),
    ] {
        let mut nat = published(&[host]);
        assert_eq!(ask(&mut nat, 0, client, local_ip), client);
        nat.send(guest, client);
        assert_eq!(
            nat.world.calls(),
            [format!("0: from {local_ip} > {client} hop 63 5")]
        );
    }
}

#[test]
fn loopback_clients_of_one_port_appear_with_different_ports() {
    let mut nat = published(&["0.0.0.0:5353"]);
    let one = ask(&mut nat, 0, "127.0.0.1:999", "127.0.0.1");
    let two = ask(&mut nat, 0, "127.0.0.2:999", "127.0.0.1");
    assert_eq!(ask(&mut nat, 0, "127.0.0.1:999", "127.0.0.1"), one);
    for shown in [&one, &two] {
        assert_eq!(addr(shown).ip(), addr("10.0.2.2:0").ip());
        assert!(addr(shown).port() >= 49_152);
    }
    assert_ne!(one, two);
    nat.send("10.0.2.15:53", &one);
    nat.send("10.0.2.15:53", &two);
    assert_eq!(
        nat.world.calls(),
        [
            "0: from 127.0.0.1 > 127.0.0.1:999 hop 63 5",
            "0: from 127.0.0.1 > 127.0.0.2:999 hop 63 5",
        ]
    );
}

#[test]
fn client_without_a_free_gateway_port_is_dropped() {
    let mut nat = published(&["0.0.0.0:5353"]);
    for nth in 0..24_000 {
        nat.arrive(0, &format!("127.0.{}.{}:1", nth / 250, 1 + nth % 250));
        nat.world.link.take();
    }
    let refused = nat.world.net.counters.udp_unsolicited;
    assert!(refused >= 24_000 - 16_384, "{refused}");
    // The number of tries is limited, but nearly all free ports are found.
    assert!(refused < 24_000 - 16_000, "{refused}");
}

#[test]
fn gateway_ports_are_reused() {
    let mut nat = published(&["0.0.0.0:5353"]);
    for nth in 0..24_000 {
        nat.arrive(0, &format!("127.0.{}.{}:1", nth / 250, 1 + nth % 250));
        nat.world.link.take();
    }
    nat.wait(121);
    for nth in 0..1_000 {
        let client = format!("127.200.{}.{}:1", nth / 250, 1 + nth % 250);
        let shown = ask(&mut nat, 0, &client, "127.0.0.1");
        nat.send("10.0.2.15:53", &shown);
        assert_eq!(
            nat.world.calls(),
            [format!("0: from 127.0.0.1 > {client} hop 63 5")]
        );
    }
}

#[test]
fn client_is_answered_by_the_socket_that_it_used() {
    let mut nat = published(&["198.51.100.7:5353", "127.0.0.1:5353", "198.51.100.8:5353"]);
    let local = ask(&mut nat, 1, "127.0.0.1:999", "127.0.0.1");
    ask(&mut nat, 2, "192.0.2.1:999", "198.51.100.8");
    ask(&mut nat, 0, "192.0.2.2:999", "198.51.100.7");
    nat.send("10.0.2.15:53", &local);
    nat.send("10.0.2.15:53", "192.0.2.1:999");
    nat.send("10.0.2.15:53", "192.0.2.2:999");
    assert_eq!(
        nat.world.calls(),
        [
            "1: from 127.0.0.1 > 127.0.0.1:999 hop 63 5",
            "2: from 198.51.100.8 > 192.0.2.1:999 hop 63 5",
            "0: from 198.51.100.7 > 192.0.2.2:999 hop 63 5",
        ]
    );
    // The same client sends to another socket.
    ask(&mut nat, 0, "192.0.2.1:999", "198.51.100.7");
    nat.send("10.0.2.15:53", "192.0.2.1:999");
    assert_eq!(
        nat.world.calls(),
        ["0: from 198.51.100.7 > 192.0.2.1:999 hop 63 5"]
    );
}

#[test]
fn new_peer_is_reached_by_a_socket_with_a_suitable_address() {
    let mut nat = published(&["127.0.0.1:5353", "198.51.100.7:5353"]);
    nat.world.net.policy.host_loopback = vec!["10.0.2.2".parse().unwrap()];
    nat.send("10.0.2.15:53", "192.0.2.1:7");
    nat.send("10.0.2.15:53", "10.0.2.2:7");
    assert_eq!(
        nat.world.calls(),
        ["1: > 192.0.2.1:7 hop 63 5", "0: > 127.0.0.1:7 hop 63 5"]
    );
    nat.arrive(1, "192.0.2.1:7");
    assert_eq!(nat.world.down(), ["udp 192.0.2.1:7 > 10.0.2.15:53 hop 57 4"]);
}

#[test]
fn peer_that_no_published_socket_reaches_gets_an_extra_socket() {
    for (host, guest, outside, other) in [
        ("127.0.0.1:5353", "10.0.2.15:53", "192.0.2.1:7", "192.0.2.1:8"),
        (
            "[::1]:5353",
            "[fd70:6f6e:746f::15]:53",
            "[2001:db8::1]:7",
            "[2001:db8::1]:8",
        ),
    ] {
        let mut nat = published(&[host]);
        nat.world.net.config.udp_filter = UdpFilter::Address;
        nat.send(guest, outside);
        nat.send(guest, outside);
        let sent = format!("1: > {outside} hop 63 5");
        assert_eq!(nat.world.calls()[1..], [sent.clone(), sent.clone()]);
        assert_eq!(nat.world.moved(), [("udp_up", 2)]);
        assert_eq!(nat.world.net.flows, 2);
        // The extra endpoint accepts the senders that the filter permits, like any endpoint; the published one accepts
        // all senders.
        nat.world.forget();
        nat.arrive(1, other);
        assert_eq!(nat.world.down(), [format!("udp {other} > {guest} hop 57 4")]);
        let stranger = other.replace("::1]", "::9]").replace("2.1:", "2.9:");
        nat.world.forget();
        nat.arrive(1, &stranger);
        assert_eq!(nat.world.moved(), [("udp_unsolicited", 1)]);
        let local = host.replace("5353", "999");
        let local_ip = addr(host).ip().to_string();
        let shown = ask(&mut nat, 0, &local, &local_ip);
        nat.send(guest, &shown);
        assert_eq!(
            nat.world.calls(),
            [format!("0: from {local_ip} > {local} hop 63 5")]
        );
        nat.send(guest, outside);
        assert_eq!(nat.world.calls(), [sent]);
        // The extra endpoint expires like any other, and is opened again.
        nat.wait(121);
        assert_eq!((nat.world.host.open_sockets(), nat.world.net.flows), (1, 1));
        nat.world.forget();
        nat.send(guest, outside);
        assert_eq!(nat.world.calls()[1..], [format!("2: > {outside} hop 63 5")]);
        close(&mut nat, 0);
        assert_eq!((nat.world.host.open_sockets(), nat.world.net.flows), (0, 0));
    }
}

#[test]
fn loopback_is_reached_by_an_extra_socket_beside_a_bound_one() {
    let mut nat = published(&["198.51.100.7:5353"]);
    nat.world.net.policy.host_loopback = vec!["10.0.2.2".parse().unwrap()];
    nat.send("10.0.2.15:53", "10.0.2.2:7");
    nat.send("10.0.2.15:53", "192.0.2.1:7");
    assert_eq!(
        nat.world.calls()[1..],
        ["1: > 127.0.0.1:7 hop 63 5", "0: > 192.0.2.1:7 hop 63 5"]
    );
    nat.world.forget();
    nat.arrive(1, "127.0.0.1:7");
    assert_eq!(nat.world.down(), ["udp 10.0.2.2:7 > 10.0.2.15:53 hop 57 4"]);
}

#[test]
fn peers_of_an_extra_socket_have_their_own_ports() {
    let mut nat = published(&["127.0.0.1:5353"]);
    nat.world.net.config.udp_filter = UdpFilter::Endpoint;
    nat.send("10.0.2.15:53", "192.0.2.1:7");
    for nth in 0..24_000 {
        nat.arrive(0, &format!("127.0.{}.{}:1", nth / 250, 1 + nth % 250));
        nat.world.link.take();
    }
    for client in 1..250 {
        nat.arrive(1, &format!("127.200.0.{client}:1"));
    }
    assert!(nat.world.net.counters.udp_down <= 16_384);
}

#[test]
fn extra_socket_counts_against_max_flows() {
    let mut nat = published(&["127.0.0.1:5353"]);
    nat.world.net.config.max_flows = 1;
    nat.send("10.0.2.15:53", "192.0.2.1:7");
    assert_eq!(nat.world.moved(), [("flows_refused", 1)]);
    nat.world.net.config.max_flows = 2;
    nat.send("10.0.2.15:53", "192.0.2.1:7");
    // The extra endpoint is the one that is evicted.
    nat.world.forget();
    nat.send(GUEST, "192.0.2.1:7");
    assert_eq!(nat.world.moved(), [("udp_up", 1), ("udp_evicted", 1)]);
    assert_eq!(nat.world.host.open_sockets(), 2);
    nat.world.forget();
    nat.send("10.0.2.15:53", "192.0.2.1:7");
    assert_eq!(nat.world.moved(), [("udp_up", 1), ("udp_evicted", 1)]);
}

#[test]
fn published_socket_that_reaches_the_peer_replaces_the_extra_one() {
    let mut nat = published(&["127.0.0.1:5353"]);
    nat.send("10.0.2.15:53", "192.0.2.1:7");
    nat.world
        .net
        .config
        .published
        .push(Published::new(Protocol::Udp, addr("198.51.100.7:5353"), 53));
    let published = nat.world.net.config.published[1];
    nat.udp.publish(1, published, &mut nat.world.ctx()).unwrap();
    nat.world.forget();
    nat.send("10.0.2.15:53", "192.0.2.1:7");
    nat.send("10.0.2.15:53", "192.0.2.2:7");
    assert_eq!(
        nat.world.calls(),
        ["1: > 192.0.2.1:7 hop 63 5", "2: > 192.0.2.2:7 hop 63 5"]
    );
    close(&mut nat, 0);
    nat.world.forget();
    nat.send("10.0.2.15:53", "192.0.2.2:7");
    assert_eq!(nat.world.net.flows, 2);
    close(&mut nat, 1);
    assert_eq!((nat.world.host.open_sockets(), nat.world.net.flows), (0, 0));
}

#[test]
fn wildcard_socket_reaches_all_peers() {
    let mut nat = published(&["0.0.0.0:5353", "127.0.0.1:5454"]);
    nat.world.net.policy.host_loopback = vec!["10.0.2.2".parse().unwrap()];
    nat.send("10.0.2.15:53", "192.0.2.1:7");
    nat.send("10.0.2.15:53", "10.0.2.2:7");
    assert_eq!(
        nat.world.calls(),
        ["0: > 192.0.2.1:7 hop 63 5", "0: > 127.0.0.1:7 hop 63 5"]
    );
}

#[test]
fn published_endpoint_never_expires() {
    let mut nat = published(&["0.0.0.0:5353", "127.0.0.1:5353"]);
    nat.world.net.config.max_flows = 2;
    nat.wait(1_000_000);
    nat.send(GUEST, "192.0.2.1:7");
    assert_eq!(nat.world.calls(), [""; 0]);
    assert_eq!(nat.world.moved(), [("flows_refused", 1)]);
    assert_eq!(nat.world.host.open_sockets(), 2);
}

/// Returns the address of the `nth` client, to which the guest has not sent.
fn stranger(nth: usize) -> String {
    format!("203.0.113.{}:{}", 1 + nth / 50_000, 1 + nth % 50_000)
}

#[test]
fn flood_of_clients_evicts_no_outbound_peer() {
    let mut nat = published(&["0.0.0.0:5353"]);
    let chosen = ["192.0.2.1:53", "192.0.2.2:53", "192.0.2.3:53"];
    for peer in chosen {
        nat.send(GUEST, peer);
    }
    for nth in 0..super::super::peers::POOL + 10 {
        nat.arrive(0, &stranger(nth));
    }
    for peer in chosen {
        nat.world.forget();
        nat.arrive(1, peer);
        assert_eq!(nat.world.moved(), [("frames_down", 1), ("udp_down", 1)], "{peer}");
    }
    // The limit for senders at other endpoints is half of the pool.
    let clients = super::super::peers::POOL / 2;
    assert_eq!(nat.udp.pool.len(), clients + chosen.len() - 1);
}

#[test]
fn flood_at_one_port_evicts_no_client_of_another() {
    let mut nat = published(&["0.0.0.0:5353"]);
    let clients = ["127.0.5.1:9", "127.0.5.2:9", "127.0.5.3:9"];
    let shown = clients.map(|client| ask(&mut nat, 0, client, "127.0.0.1"));
    for nth in 0..100_000 {
        if nth == 60_000 {
            // A second port is published during the flood.
            nat.world
                .net
                .config
                .published
                .push(Published::new(Protocol::Udp, addr("0.0.0.0:7777"), 77));
            let published = nat.world.net.config.published[1];
            nat.udp.publish(1, published, &mut nat.world.ctx()).unwrap();
            assert!(nat.udp.pool.len() <= super::super::peers::POOL / 3);
        }
        let port = usize::from(nth >= 60_000);
        if port == 0 && nth % 1_000 == 0 {
            for client in clients {
                nat.arrive(0, client);
            }
        }
        nat.arrive(port, &stranger(nth));
    }
    // A datagram of the guest reaches each of the first port's clients.
    for (client, shown) in clients.into_iter().zip(shown) {
        nat.world.forget();
        nat.send("10.0.2.15:53", &shown);
        let calls = nat.world.calls();
        assert_eq!(calls.len(), 1);
        assert!(calls[0].starts_with(&format!("0: > {client} ")), "{calls:?}");
    }
    assert!(nat.udp.pool.len() <= super::super::peers::POOL / 3 * 2);
}

/// A range of ports is removed port by port, in one turn of the first worker's loop.
#[test]
fn removal_of_a_range_of_ports_does_not_search_the_pool_for_each() {
    let mut nat = Nat::new();
    nat.world.net.config.published = (10_000..10_100)
        .map(|port| Published::new(Protocol::Udp, addr(&format!("0.0.0.0:{port}")), port))
        .collect();
    open(&mut nat);
    for socket in 0..100 {
        for client in ["198.51.100.1:7", "198.51.100.2:7"] {
            ask(&mut nat, socket, client, "192.0.2.9");
        }
    }
    for place in 0..100 {
        close(&mut nat, place);
    }
    assert_eq!(nat.udp.pool.scans, 0);
}

#[test]
fn removal_of_second_sockets_does_not_search_the_pool() {
    let hosts: Vec<_> = (0..100).map(|nth| format!("198.51.100.{nth}:5353")).collect();
    let mut nat = published(&hosts.iter().map(String::as_str).collect::<Vec<_>>());
    for socket in 0..100 {
        for client in ["192.0.2.1", "192.0.2.2"] {
            ask(
                &mut nat,
                socket,
                &format!("{client}:{}", 1000 + socket),
                "198.51.100.7",
            );
        }
    }
    assert_eq!(nat.udp.pool.len(), 199, "one is stored in place");
    for place in (50..100).rev() {
        close(&mut nat, place);
        let sockets = usize::try_from(place).unwrap();
        assert_eq!(nat.udp.pool.len(), 2 * sockets - 1);
    }
    assert_eq!(nat.udp.pool.scans, 0);
}

#[test]
fn client_that_has_changed_the_socket_is_removed_with_the_new_one() {
    let mut nat = published(&["198.51.100.7:5353", "198.51.100.8:5353", "198.51.100.9:5353"]);
    // The first client is stored in place, the others in the pool.
    for (socket, client) in [(0, 1), (1, 2), (2, 2), (2, 3), (1, 3), (2, 4), (0, 4)] {
        ask(&mut nat, socket, &format!("192.0.2.{client}:7"), "198.51.100.7");
    }
    let known = |nat: &Nat| {
        let peers = nat.udp.pool.iter().map(|peer| peer.remote.to_string());
        peers.collect::<std::collections::BTreeSet<_>>()
    };
    close(&mut nat, 2);
    assert_eq!(
        known(&nat),
        ["192.0.2.3:7", "192.0.2.4:7"].map(str::to_owned).into()
    );
    close(&mut nat, 1);
    assert_eq!(known(&nat), ["192.0.2.4:7"].map(str::to_owned).into());
}

#[test]
fn datagrams_are_sent_to_the_target_of_a_published_port() {
    let mut nat = Nat::new();
    nat.world.net.config.published = vec![Published {
        target: Some("10.88.0.5".parse().unwrap()),
        ..Published::new(Protocol::Udp, addr("0.0.0.0:5353"), 53)
    }];
    open(&mut nat);
    nat.world.forget();
    let to = Some("198.51.100.1");
    nat.world.host.queue(0, "192.0.2.1:7", to, b"data", 4);
    nat.event(0, READABLE);
    let down = nat.world.down();
    assert!(
        down[0].contains("192.0.2.1:7") && down[0].contains("10.88.0.5:53"),
        "{down:?}"
    );
    // A client with the target's address appears as the gateway.
    let shown = ask(&mut nat, 0, "10.88.0.5:7", "198.51.100.1");
    assert!(shown.starts_with("10.0.2.2:"), "{shown}");
}
