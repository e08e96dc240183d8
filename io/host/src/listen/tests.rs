use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use pontoon_event::Events;

use super::*;

fn published(protocol: Protocol, host: SocketAddr) -> Published {
    Published::new(protocol, host, 80)
}

/// A regular file stands in for a listener that epoll_ctl(2) refuses (EPERM).
#[test]
fn failed_registration_of_a_listener_is_retried() {
    let epoll = Epoll::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let held = |fd: OwnedFd| {
        Some(PublishedSocket {
            published: published(Protocol::Tcp, at),
            socket: PublishedFd::Listener(Arc::new(fd)),
        })
    };
    let mut sockets = PublishedSockets {
        places: vec![held(tempfile::tempfile().unwrap().into())],
        ..PublishedSockets::default()
    };
    let _client = TcpStream::connect(at).unwrap();
    let none = sockets.accept(0, |_| Err(Errno::MFILE));
    assert_eq!(none.err(), Some(Errno::MFILE));
    sockets.rearm(&epoll);

    sockets.places[0] = held(listener.into());
    sockets.rearm(&epoll);
    let mut events = Events::new();
    epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
    assert_eq!(events.flows().count(), 1, "the waiting client is reported");
    assert!(sockets.unreported.is_empty());
}

#[test]
fn udp_port_can_be_taken_after_a_failed_attempt() {
    let epoll = Epoll::new().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = published(Protocol::Udp, socket.local_addr().unwrap());
    let mut sockets = PublishedSockets::default();
    let index = sockets
        .open(&epoll, port, Arc::new(socket.into()), false)
        .unwrap();
    let flow = FlowId {
        kind: Kind::Udp,
        worker: WorkerId(0),
        index: 0,
        generation: 3,
    };
    // The socket is not registered with this other epoll instance, so that the call fails.
    let refused = sockets.take_udp(&Epoll::new().unwrap(), index, flow);
    assert_eq!(refused.err(), Some(Errno::NOENT));
    assert!(sockets.take_udp(&epoll, index, flow).is_ok());
}
