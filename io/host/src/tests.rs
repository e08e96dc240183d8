use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use pontoon_engine::config::Protocol;
use pontoon_engine::{Kind, Readiness, WorkerId};
use pontoon_event::Events;

use super::*;

mod given;
mod pings;
mod streams;
mod udps;
const ALL: HostFeatures = HostFeatures {
    peek_off: [true; 2],
    udp_gso: true,
    udp_gro: true,
};
const NONE: HostFeatures = HostFeatures {
    peek_off: [false; 2],
    udp_gso: false,
    udp_gro: false,
};

fn flow(kind: Kind, index: u32) -> FlowId {
    FlowId {
        kind,
        worker: WorkerId(0),
        index,
        generation: 3,
    }
}

/// Returns a host without published ports.
fn host(can: HostFeatures) -> KernelHost {
    KernelHost::new(can, Outbound::default(), [None, None]).unwrap()
}

/// Returns a host with one published port.
fn published(protocol: Protocol, socket: impl Into<OwnedFd>, at: SocketAddr) -> KernelHost {
    let published = Published::new(protocol, at, 80);
    let mut host = host(ALL);
    let socket: OwnedFd = socket.into();
    rustix::io::ioctl_fionbio(&socket, true).unwrap();
    assert_eq!(host.add_published(published, Arc::new(socket)).unwrap(), 0);
    host
}

/// Returns the events that arrive within two seconds.
fn events(host: &KernelHost) -> Vec<(FlowId, Readiness)> {
    let mut events = Events::new();
    host.epoll()
        .wait(&mut events, Some(Duration::from_secs(2)))
        .unwrap();
    events.flows().collect()
}

/// Waits up to two seconds for an event of `flow` that satisfies `wanted`.
#[track_caller]
fn until(host: &KernelHost, flow: FlowId, wanted: impl Fn(Readiness) -> bool) {
    for _ in 0..100 {
        let happened = events(host);
        assert!(!happened.is_empty(), "nothing happens");
        if happened.iter().any(|(who, ready)| *who == flow && wanted(*ready)) {
            return;
        }
    }
    panic!("no event of the flow satisfies the condition");
}

/// Returns the loopback addresses of both families, and prints a line for a family that this machine lacks.
fn loopbacks(test: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for ip in [Family::V4.loopback(), Family::V6.loopback()] {
        match UdpSocket::bind((ip, 0)) {
            Ok(_) => found.push(ip),
            Err(error) => crate::namespace::skipped(test, &format!("no {ip} here: {error}")),
        }
    }
    found
}

fn slice(bytes: &mut [u8]) -> [VolatileSlice<'_>; 1] {
    [VolatileSlice::from(bytes)]
}

fn listener(ip: IpAddr) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

#[test]
fn each_errno_is_converted_to_one_failure() {
    let meanings = [
        (Errno::AGAIN, Failure::WouldBlock),
        (Errno::ALREADY, Failure::WouldBlock),
        (Errno::CONNREFUSED, Failure::Refused),
        (Errno::PIPE, Failure::Reset),
        (Errno::TIMEDOUT, Failure::TimedOut),
        (Errno::ADDRNOTAVAIL, Failure::NetUnreachable),
        (Errno::HOSTUNREACH, Failure::HostUnreachable),
        (Errno::PERM, Failure::Prohibited),
        (Errno::MSGSIZE, Failure::TooBig),
        (Errno::MFILE, Failure::Exhausted),
        (Errno::ADDRINUSE, Failure::InUse),
        (Errno::IO, Failure::Invalid),
        (Errno::NOTSOCK, Failure::Other(88)),
    ];
    for (errno, meaning) in meanings {
        assert_eq!(failure(errno), meaning);
    }
}

#[test]
fn disabled_features_are_absent() {
    let disabled = Disabled::parse("peek_off,udp_gso,udp_gro").unwrap();
    assert_eq!(HostFeatures::probe(&disabled), NONE);
    let can = HostFeatures::probe(&Disabled::default());
    assert!(
        can.udp_gso && can.udp_gro,
        "every kernel has these since Linux 5.0"
    );
}

#[test]
fn socket_of_another_type_is_refused() {
    let mut host = host(ALL);
    let mut socket = host.udp_open(flow(Kind::Udp, 0), Family::V4.loopback()).unwrap();
    assert_eq!(host.tcp_discard(&mut socket, 1), Err(Failure::Invalid));
    assert_eq!(host.ping_receive(&mut socket, &mut []), Err(Failure::Invalid));
}
