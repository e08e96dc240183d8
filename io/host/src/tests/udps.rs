use super::*;
use crate::namespace::{self, ip};

const META: DatagramMeta = DatagramMeta {
    hop_limit: 60,
    traffic_class: 0x28,
    dont_fragment: true,
};

fn id() -> FlowId {
    flow(Kind::Udp, 9)
}

/// Returns a UDP socket on loopback, which is the guest's peer, and its address.
fn peer(ip: IpAddr) -> (UdpSocket, SocketAddr) {
    let peer = UdpSocket::bind((ip, 0)).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let at = peer.local_addr().unwrap();
    (peer, at)
}

fn send(host: &mut KernelHost, socket: &mut Socket, to: SocketAddr, data: &[u8]) -> Result<(), Failure> {
    host.udp_send(socket, Some(to), None, META, None, &slice(&mut data.to_vec()))
}

fn receive(host: &mut KernelHost, socket: &mut Socket) -> Result<(Received, Vec<u8>), Failure> {
    let mut bytes = vec![0; 65536];
    let received = host.udp_receive(socket, &slice(&mut bytes))?;
    bytes.truncate(received.len);
    Ok((received, bytes))
}

#[test]
fn datagrams_are_sent_and_replies_are_received() {
    for ip in loopbacks("datagrams_are_sent_and_replies_are_received") {
        let mut host = host(ALL);
        let (peer, at) = peer(ip);
        let mut socket = host.udp_open(id(), ip).unwrap();
        send(&mut host, &mut socket, at, b"ping").unwrap();
        let mut bytes = [0; 9];
        let (len, back) = peer.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"ping");

        assert_eq!(receive(&mut host, &mut socket).unwrap_err(), Failure::WouldBlock);
        udp_sys::set_hop_limit(&peer, Family::of(ip), 9).unwrap();
        udp_sys::set_traffic_class(&peer, Family::of(ip), 0xb8).unwrap();
        peer.send_to(b"pong!", back).unwrap();
        until(&host, id(), |ready| ready.readable);
        let (received, data) = receive(&mut host, &mut socket).unwrap();
        assert_eq!(
            (data.as_slice(), received.stride, received.from),
            (&b"pong!"[..], 5, at)
        );
        let meta = DatagramMeta {
            hop_limit: 9,
            traffic_class: 0xb8,
            dont_fragment: false,
        };
        assert_eq!((received.to, received.meta), (None, meta));
    }
}

#[test]
fn header_fields_are_those_of_each_datagram() {
    for ip in loopbacks("header_fields_are_those_of_each_datagram") {
        let mut sender = host(ALL);
        let mut receiver = host(ALL);
        let mut from = sender.udp_open(id(), ip).unwrap();
        let mut to = receiver.udp_open(id(), ip).unwrap();
        let Socket::Udp(endpoint) = &to else {
            panic!("it is one")
        };
        let port = SocketAddr::try_from(rustix::net::getsockname(endpoint.as_fd()).unwrap())
            .unwrap()
            .port();
        for (hop_limit, traffic_class) in [(1, 0), (255, 0xfc), (255, 0), (64, 0)] {
            let meta = DatagramMeta {
                hop_limit,
                traffic_class,
                dont_fragment: false,
            };
            let at = SocketAddr::from((ip, port));
            sender
                .udp_send(&mut from, Some(at), None, meta, None, &slice(&mut [1]))
                .unwrap();
            assert_eq!(receive(&mut receiver, &mut to).unwrap().0.meta, meta);
        }
    }
}

#[test]
fn segments_are_sent_and_received_in_one_call() {
    for ip in loopbacks("segments_are_sent_and_received_in_one_call") {
        let mut host = host(ALL);
        let (peer, at) = peer(ip);
        udp_sys::coalesce(&peer).unwrap();
        let mut socket = host.udp_open(id(), ip).unwrap();
        let mut data = vec![5; 4200];
        host.udp_send(&mut socket, Some(at), None, META, Some(1000), &slice(&mut data))
            .unwrap();
        let (len, back) = peer.recv_from(&mut data).unwrap();
        assert_eq!(len, 4200, "one receive takes them all");

        let mut control = udp_sys::SendControl::new();
        udp_sys::push_segment(&mut control, 500);
        pontoon_sys::message::send(&peer, &slice(&mut data[..1200]), Some(back), control.bytes()).unwrap();
        let (received, _) = receive(&mut host, &mut socket).unwrap();
        assert_eq!((received.len, received.stride), (1200, 500));
    }
}

#[test]
fn datagrams_are_sent_one_by_one_without_offloads() {
    let mut host = host(NONE);
    let (peer, at) = peer(Family::V4.loopback());
    let mut socket = host.udp_open(id(), at.ip()).unwrap();
    let mut data = [5; 2000];
    let refused = host.udp_send(&mut socket, Some(at), None, META, Some(1000), &slice(&mut data));
    assert_eq!(refused, Err(Failure::Invalid));
    send(&mut host, &mut socket, at, b"x").unwrap();
    let back = peer.recv_from(&mut data).unwrap().1;
    let mut control = udp_sys::SendControl::new();
    udp_sys::push_segment(&mut control, 1000);
    pontoon_sys::message::send(&peer, &slice(&mut data), Some(back), control.bytes()).unwrap();
    assert_eq!(receive(&mut host, &mut socket).unwrap().0.len, 1000);
    assert_eq!(receive(&mut host, &mut socket).unwrap().0.len, 1000);
}

#[test]
fn endpoint_keeps_its_port_after_a_disconnect() {
    for ip in loopbacks("endpoint_keeps_its_port_after_a_disconnect") {
        let mut host = host(ALL);
        let ((first, one), (second, two)) = (peer(ip), peer(ip));
        let mut socket = host.udp_open(id(), ip).unwrap();
        host.udp_connect(&mut socket, Some(one)).unwrap();
        host.udp_send(&mut socket, None, None, META, None, &slice(&mut [1]))
            .unwrap();
        let before = first.recv_from(&mut [0; 9]).unwrap().1;
        host.udp_connect(&mut socket, None).unwrap();
        send(&mut host, &mut socket, two, b"x").unwrap();
        assert_eq!(second.recv_from(&mut [0; 9]).unwrap().1, before);
    }
}

#[test]
fn port_unreachable_is_reported_as_a_problem() {
    for ip in loopbacks("port_unreachable_is_reported_as_a_problem") {
        let mut host = host(ALL);
        let (_, closed) = peer(ip);
        let mut socket = host.udp_open(id(), ip).unwrap();
        send(&mut host, &mut socket, closed, b"anybody?").unwrap();
        until(&host, id(), |ready| ready.error);
        let mut sent = [0; 64];
        let problem = host.problem(&mut socket, &mut sent).unwrap();
        let (kind, code) = if ip.is_ipv4() { (3, 3) } else { (1, 4) };
        let expected = Problem {
            destination: closed,
            offender: Some(ip),
            kind,
            code,
            mtu: None,
            payload_len: 8,
        };
        assert_eq!(problem, expected);
        assert_eq!(&sent[..8], b"anybody?");
        assert_eq!(host.problem(&mut socket, &mut sent), None);
    }
}

#[test]
fn datagrams_larger_than_the_path_mtu_are_reported_with_it() {
    namespace::run(
        "tests::udps::datagrams_larger_than_the_path_mtu_are_reported_with_it",
        || {
            ip("link set lo mtu 1500 up");
            for ip in loopbacks("datagrams_larger_than_the_path_mtu_are_reported_with_it") {
                let mut host = host(ALL);
                let (peer, at) = peer(ip);
                let mut socket = host.udp_open(id(), ip).unwrap();
                assert_eq!(send(&mut host, &mut socket, at, &[0; 3000]), Err(Failure::TooBig));
                let problem = host.problem(&mut socket, &mut [0; 64]).unwrap();
                let (kind, code) = if ip.is_ipv4() { (3, 4) } else { (2, 0) };
                assert_eq!(
                    (problem.kind, problem.code, problem.mtu),
                    (kind, code, Some(1500))
                );
                assert_eq!((problem.destination.ip(), problem.offender), (ip, None));

                let meta = DatagramMeta {
                    dont_fragment: false,
                    ..META
                };
                host.udp_send(&mut socket, Some(at), None, meta, None, &slice(&mut [0; 3000]))
                    .unwrap();
                assert_eq!(peer.recv(&mut [0; 4000]).unwrap(), 3000, "fragmented on the way");
            }
        },
    );
}

#[test]
fn truncated_datagram_is_an_error() {
    let mut host = host(ALL);
    let (peer, at) = peer(Family::V4.loopback());
    let mut socket = host.udp_open(id(), at.ip()).unwrap();
    send(&mut host, &mut socket, at, b"x").unwrap();
    let back = peer.recv_from(&mut [0; 9]).unwrap().1;
    peer.send_to(b"too long", back).unwrap();
    assert_eq!(
        host.udp_receive(&mut socket, &slice(&mut [0; 4])),
        Err(Failure::TooBig)
    );
    assert_eq!(receive(&mut host, &mut socket).unwrap_err(), Failure::WouldBlock);
}

#[test]
fn published_udp_socket_is_used_by_one_flow_at_a_time() {
    let (server, at) = peer(Family::V4.loopback());
    let mut host = published(Protocol::Udp, server, at);
    let (client, from) = peer(at.ip());
    client.send_to(b"early", at).unwrap();
    assert!(events(&host).iter().any(|(who, _)| who.kind == Kind::Listener));

    let mut socket = host.udp_published(0, id()).unwrap();
    assert!(matches!(host.udp_published(0, id()), Err(Failure::Invalid)));
    until(&host, id(), |ready| ready.readable);
    assert_eq!(receive(&mut host, &mut socket).unwrap().0.from, from);
    send(&mut host, &mut socket, from, b"answer").unwrap();
    assert_eq!(client.recv_from(&mut [0; 9]).unwrap(), (6, at));
    host.close(socket);
    assert!(host.udp_published(0, id()).is_ok());
}

#[test]
fn published_wildcard_port_replies_from_the_queried_address() {
    let server = UdpSocket::bind("0.0.0.0:0").unwrap();
    let at = server.local_addr().unwrap();
    let mut host = published(Protocol::Udp, server, at);
    let mut socket = host.udp_published(0, id()).unwrap();
    let asked: SocketAddr = format!("127.0.0.9:{}", at.port()).parse().unwrap();
    let (client, from) = peer(Family::V4.loopback());
    client.send_to(b"where?", asked).unwrap();
    let (received, _) = receive(&mut host, &mut socket).unwrap();
    assert_eq!(received.to, Some(asked.ip()));
    host.udp_send(&mut socket, Some(from), received.to, META, None, &slice(&mut [1]))
        .unwrap();
    assert_eq!(client.recv_from(&mut [0; 9]).unwrap().1, asked);
}

#[test]
fn endpoints_use_ports_of_the_ephemeral_range_until_it_is_full() {
    namespace::run(
        "tests::udps::endpoints_use_ports_of_the_ephemeral_range_until_it_is_full",
        || {
            ip("link set lo up");
            namespace::sysctl("net/ipv4/ip_local_port_range", "40000 40001");
            let mut host = host(ALL);
            let mut open = || host.udp_open(id(), Family::V4.loopback());
            let mut ports = [open().unwrap(), open().unwrap()].map(|socket| {
                let Socket::Udp(endpoint) = socket else {
                    panic!("it is one")
                };
                let at = SocketAddr::try_from(rustix::net::getsockname(endpoint.as_fd()).unwrap()).unwrap();
                // The endpoint stays open until the end of the test.
                std::mem::forget(endpoint);
                at.port()
            });
            ports.sort_unstable();
            assert_eq!(ports, [40000, 40001]);
            assert_eq!(open().unwrap_err(), Failure::InUse);
        },
    );
}
