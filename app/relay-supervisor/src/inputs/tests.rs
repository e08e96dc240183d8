use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pontoon_relay::Rule;
use pontoon_sys::packet::Size;
use pontoon_test_support::process::close_port;
use rustix::net::{SocketFlags, SocketType, socket_with, sockopt};

use super::packet_ring::PacketRing;
use super::receiver::{OpenReceiver, PacketSource};
use super::*;
use crate::links::{Link, LinkWatch};
use crate::worker_pool::{SpawnConfig, Task};

/// Returns inputs of the given mode, without workers.
fn inputs(engine: ReceiveMode) -> (Inputs, Links, WorkerPool) {
    let spawn_config = SpawnConfig::for_tests();
    let (_, links) = LinkWatch::start().unwrap();
    (
        Inputs::new(engine, usize::MAX),
        links,
        WorkerPool::new(Task::Forward, 0, spawn_config).unwrap(),
    )
}

fn input(port: u16) -> Input {
    let rule: Rule = format!("lo 239.1.1.1:{port} -> a *:*").parse().unwrap();
    rule.input
}

/// Returns a port that is in use, and the socket that uses it.
fn held() -> (UdpSocket, u16) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

#[test]
fn port_in_use_is_opened_when_it_is_free() {
    let (mut inputs, links, mut workers) = inputs(ReceiveMode::Socket);
    let mut holders = [held(), held()];
    holders.sort_unstable_by_key(|(_, port)| *port);
    let [(holder, port), (other, free)] = holders;
    close_port(other);
    let wanted = [input(port), input(free)];
    let ingress = Ingress::of(&wanted[0]);
    inputs.add(ingress.clone(), 0);

    inputs.update(&ingress, wanted.iter(), &links, &mut workers);
    let why = format!("239.1.1.1:{port}: address already in use");
    assert_eq!(inputs.missing(&wanted[0]), Some(&*why));
    assert_eq!(inputs.missing(&wanted[1]), None, "the one behind it is open");
    assert!(inputs.incomplete());
    assert_eq!(inputs.stats(&workers)[0].state, format!("UDP sockets; {why}"));

    close_port(holder);
    inputs.update(&ingress, wanted.iter(), &links, &mut workers);
    assert_eq!(inputs.missing(&wanted[0]), None);
    assert!(!inputs.incomplete());
    assert_eq!(inputs.stats(&workers)[0].state, "UDP sockets");
}

#[test]
fn sockets_beyond_the_limit_are_refused_until_there_is_room() {
    let (mut inputs, links, mut workers) = inputs(ReceiveMode::Socket);

    let ports = [held(), held()].map(|(socket, port)| {
        close_port(socket);
        port
    });
    let v6: Rule = format!("lo [ff1e::1]:{} -> a *:*", ports[0]).parse().unwrap();
    let (v4, v6) = (ports.map(input), [v6.input]);
    let of = [Ingress::of(&v4[0]), Ingress::of(&v6[0])];
    for ingress in &of {
        inputs.add(ingress.clone(), 0);
    }
    for (max_sockets, refused) in [(1, 1), (2, 0)] {
        inputs.max_sockets = max_sockets;
        inputs.update(&of[0], v4.iter(), &links, &mut workers);
        assert_eq!(inputs.refused(), refused);
    }
    inputs.update(&of[1], v6.iter(), &links, &mut workers);
    assert_eq!(inputs.refused(), 1);
    assert_eq!(inputs.missing(&v6[0]), Some("the limit on sockets is reached"));
    assert!(!inputs.incomplete(), "another attempt would fail in the same way");

    inputs.update(&of[0], v4[..1].iter(), &links, &mut workers);
    assert!(inputs.incomplete(), "there is room");
    inputs.update(&of[1], v6.iter(), &links, &mut workers);
    assert_eq!((inputs.refused(), inputs.missing(&v6[0])), (0, None));
    assert!(!inputs.incomplete());

    // A change of the interface closes all sockets before they are opened again.
    let mut changed = links.clone();
    changed.get_mut("lo").unwrap().mtu += 1;
    inputs.update(&of[1], v6.iter(), &changed, &mut workers);
    assert_eq!(inputs.refused(), 0);
}

fn params(link: &Link) -> RingParams {
    RingParams {
        index: link.index,
        mtu: link.mtu,
        defragment: true,
    }
}

/// Another program of the host uses the same port at another address.
#[test]
fn socket_receives_only_the_address_of_its_rule() {
    let (mut inputs, links, mut workers) = inputs(ReceiveMode::Socket);
    let (other, port) = {
        let socket = socket_with(Family::V4.domain(), SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
        let socket = UdpSocket::from(socket);
        let port = socket.local_addr().unwrap().port();
        (socket, port)
    };
    let wanted = [input(port)];
    let ingress = Ingress::of(&wanted[0]);
    inputs.add(ingress.clone(), 0);
    inputs.update(&ingress, wanted.iter(), &links, &mut workers);
    assert_eq!(inputs.missing(&wanted[0]), None);
    other
        .set_read_timeout(Some(std::time::Duration::from_secs(5)))
        .unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.send_to(b"other", ("127.0.0.1", port)).unwrap();
    assert_eq!(other.recv(&mut [0; 8]).unwrap(), 5);
}

/// Returns an open ring that is `socket`: a real ring needs privileges. Any socket accepts a filter, and a descriptor that
/// is not a socket refuses it.
fn ring(links: &Links, socket: OwnedFd) -> OpenReceiver {
    OpenReceiver {
        params: links.get("lo").map(params).unwrap(),
        source: PacketSource::Ring(PacketRing::of(1, Size::new(1, 1500), vec![Arc::new(socket)])),
    }
}

#[test]
fn refused_filter_is_attached_again() {
    let (mut inputs, links, mut workers) = inputs(ReceiveMode::Ring);
    let wanted = [input(5000)];
    let ingress = Ingress::of(&wanted[0]);
    inputs.add(ingress.clone(), 0);
    let no_socket = std::fs::File::open("/dev/null").unwrap();
    inputs.ingresses.get_mut(&ingress).unwrap().state = Ok(ring(&links, no_socket.into()));
    inputs.update(&ingress, wanted.iter(), &links, &mut workers);
    let why = inputs.missing(&wanted[0]).unwrap();
    assert!(why.starts_with("cannot adapt to the rules: "), "{why}");
    assert!(inputs.incomplete());

    inputs.ingresses.get_mut(&ingress).unwrap().state = Ok(ring(&links, held().0.into()));
    inputs.update(&ingress, wanted.iter(), &links, &mut workers);
    assert_eq!(inputs.missing(&wanted[0]), None);
    assert!(!inputs.incomplete());
}

/// With more rules than a filter has room for, a range of groups does not change the filter. A socket other than a packet
/// socket refuses PACKET_MR_ALLMULTI.
#[test]
fn range_of_groups_requests_all_groups_whatever_the_filter() {
    let (mut inputs, links, mut workers) = inputs(ReceiveMode::Ring);
    let input = |group: String| {
        format!("lo {group}:* -> a *:*")
            .parse()
            .map(|rule: Rule| rule.input)
    };
    let mut wanted: Vec<Input> = (0..250)
        .map(|last| input(format!("239.1.1.{last}")).unwrap())
        .collect();
    let ingress = Ingress::of(&wanted[0]);
    inputs.add(ingress.clone(), 0);
    inputs.ingresses.get_mut(&ingress).unwrap().state = Ok(ring(&links, held().0.into()));
    inputs.update(&ingress, wanted.iter(), &links, &mut workers);
    assert_eq!(inputs.missing(&wanted[0]), None);
    wanted.push(input("239.1.1.0/25".to_owned()).unwrap());
    inputs.update(&ingress, wanted.iter(), &links, &mut workers);
    assert!(inputs.missing(&wanted[0]).is_some());
    wanted.pop();
    inputs.update(&ingress, wanted.iter(), &links, &mut workers);
    assert_eq!(inputs.missing(&wanted[0]), None);
}
