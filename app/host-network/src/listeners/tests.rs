use std::net::{TcpListener, UdpSocket};

use pontoon_test_support::process::close_port;

use super::*;

fn here() -> ListenerSet {
    let mut reader = ListenerReader::new(ListenerReader::open_socket().unwrap());
    for _ in 0..10_000 {
        if let Some(found) = reader.read(&|_| true).unwrap() {
            return found;
        }
    }
    panic!("the reply does not end");
}

#[test]
fn listening_sockets_of_this_namespace_are_found() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let both = TcpListener::bind("[::]:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let connected = UdpSocket::bind("127.0.0.1:0").unwrap();
    connected.connect("127.0.0.1:9").unwrap();
    let port = |address: io::Result<std::net::SocketAddr>| address.unwrap().port();
    let (tcp_port, both_port) = (port(tcp.local_addr()), port(both.local_addr()));
    let (udp_port, connected_port) = (port(udp.local_addr()), port(connected.local_addr()));
    let found = here();
    assert!(found.contains(Protocol::Tcp, false, tcp_port));
    assert!(found.ports(Protocol::Tcp).any(|port| port == tcp_port));
    assert!(
        found.contains(Protocol::Tcp, true, both_port) && found.contains(Protocol::Tcp, false, both_port)
    );
    assert!(found.contains(Protocol::Udp, false, udp_port));
    assert!(!found.contains(Protocol::Udp, false, connected_port));
    close_port(tcp);
    close_port(udp);
    let found = here();
    assert!(!found.contains(Protocol::Tcp, false, tcp_port));
}

#[test]
fn truncated_and_foreign_messages_are_refused_or_ignored() {
    let taken = |bytes: &[u8]| {
        let mut count = 0;
        parse(bytes, 7, |_| count += 1).map(|reply| (reply, count))
    };
    let message = |len: u32, kind: u16, sequence: u32, body: &[u8]| {
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes
    };
    assert_eq!(taken(&[]).unwrap(), (Reply::More, 0));
    assert_eq!(taken(&message(16, 3, 7, &[])).unwrap(), (Reply::Done, 0));
    assert_eq!(taken(&message(16, 3, 8, &[])).unwrap(), (Reply::More, 0));
    for len in [0, 15, 17, u32::MAX] {
        assert!(taken(&message(len, 3, 7, &[])).is_err(), "{len}");
    }
    // Truncated data of a socket, and an attribute of length 0.
    assert_eq!(taken(&message(20, 20, 7, &[2; 4])).unwrap().1, 0);
    let body = [&[2; 72][..], &[0; 4]].concat();
    assert_eq!(taken(&message(92, 20, 7, &body)).unwrap().1, 0);
    let error = taken(&message(20, 2, 7, &(-95_i32).to_ne_bytes())).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(95));
}

#[test]
fn reply_that_was_not_read_to_its_end_is_discarded() {
    let listeners: Vec<_> = (0..300)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let mut reader = ListenerReader::new(ListenerReader::open_socket().unwrap());
    // The kernel's buffer has no room for the reply, so that it is still being sent at the next request.
    reader.ask(0).unwrap();
    reader.query = None;
    let error = (0..100).find_map(|_| reader.read(&|_| true).err()).unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    let found = (0..10_000).find_map(|_| reader.read(&|_| true).unwrap()).unwrap();
    for listener in &listeners {
        let port = listener.local_addr().unwrap().port();
        assert!(found.contains(Protocol::Tcp, false, port), "{port}");
    }
}
