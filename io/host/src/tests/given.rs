use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::{UnixDatagram, UnixStream};

use super::*;

fn id() -> FlowId {
    flow(Kind::Tcp, 5)
}

/// Returns a host that has adopted one end of a Unix stream, that end, and the other one.
fn adopted() -> (KernelHost, Socket, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut host = host(NONE);
    host.give_stream(ours.into());
    let socket = host.tcp_adopt(id()).unwrap();
    (host, socket, theirs)
}

fn peek(host: &mut KernelHost, socket: &mut Socket, at: u32, len: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; len];
    let len = host.tcp_peek(socket, at, &[VolatileSlice::from(&mut *bytes)])?;
    bytes.truncate(len);
    Ok(bytes)
}

#[test]
fn unix_stream_is_peeked_at_any_offset_and_discarded() {
    let (mut host, mut socket, mut peer) = adopted();
    let socket = &mut socket;
    assert_eq!(peek(&mut host, socket, 0, 4), Err(Failure::WouldBlock));
    peer.write_all(b"01234").unwrap();
    peer.write_all(b"56789").unwrap();
    until(&host, id(), |ready| ready.readable);
    assert_eq!(peek(&mut host, socket, 0, 4).unwrap(), b"0123");
    assert_eq!(peek(&mut host, socket, 4, 4).unwrap(), b"4567");
    assert_eq!(peek(&mut host, socket, 2, 2).unwrap(), b"23");
    host.tcp_discard(socket, 3).unwrap();
    assert_eq!(peek(&mut host, socket, 1, 4).unwrap(), b"4567");
    assert_eq!(peek(&mut host, socket, 5, 4).unwrap(), b"89");
    assert_eq!(peek(&mut host, socket, 7, 4), Err(Failure::WouldBlock));
    // More than the scratch memory holds.
    let many: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
    peer.write_all(&many).unwrap();
    host.tcp_discard(socket, 7 + 50_001).unwrap();
    assert_eq!(peek(&mut host, socket, 0, 9).unwrap(), many[50_001..50_010]);
    assert_eq!(peek(&mut host, socket, 49_990, 20).unwrap(), many[99_991..]);
    // The end of the stream is behind the data.
    peer.shutdown(Shutdown::Write).unwrap();
    until(&host, id(), |ready| ready.end);
    assert_eq!(peek(&mut host, socket, 49_999, 9).unwrap(), b"");
    assert_eq!(peek(&mut host, socket, 49_998, 9).unwrap(), many[99_999..]);
}

#[test]
fn out_of_band_byte_of_a_unix_stream_is_peeked_and_discarded_in_its_place() {
    let (mut host, mut socket, mut peer) = adopted();
    peer.write_all(b"0123").unwrap();
    match rustix::net::send(&peer, b"4", rustix::net::SendFlags::OOB) {
        Ok(1) => {}
        // A kernel without CONFIG_AF_UNIX_OOB.
        Err(Errno::OPNOTSUPP) => peer.write_all(b"4").unwrap(),
        other => panic!("{other:?}"),
    }
    peer.write_all(b"5678").unwrap();
    until(&host, id(), |ready| ready.readable);
    let mut stream = Vec::new();
    while stream.len() < 9 {
        let part = peek(&mut host, &mut socket, 0, 9).unwrap();
        host.tcp_discard(&mut socket, part.len() as u32).unwrap();
        stream.extend(part);
    }
    assert_eq!(stream, b"012345678");
    assert_eq!(peek(&mut host, &mut socket, 0, 9), Err(Failure::WouldBlock));
}

#[test]
fn short_peek_of_a_unix_stream_is_not_the_end() {
    let (mut host, mut socket, peer) = adopted();
    let stdin = std::io::stdin();
    for text in [b"01", b"23"] {
        pontoon_sys::seqpacket::send(&peer, text, &[stdin.as_fd()]).unwrap();
    }
    until(&host, id(), |ready| ready.readable);
    assert!(!host.short_peek_is_last(&socket));
    assert_eq!(peek(&mut host, &mut socket, 0, 9).unwrap(), b"01");
    assert_eq!(peek(&mut host, &mut socket, 2, 9).unwrap(), b"23");
    assert_eq!(peek(&mut host, &mut socket, 4, 9), Err(Failure::WouldBlock));
}

#[test]
fn unix_stream_is_closed_in_each_direction() {
    let (mut host, mut socket, mut peer) = adopted();
    let mut hello = *b"hello";
    assert_eq!(
        host.tcp_send(&mut socket, &[VolatileSlice::from(&mut hello[..])]),
        Ok(5)
    );
    host.tcp_shutdown(&mut socket).unwrap();
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"hello");
    peer.write_all(b"bye").unwrap();
    until(&host, id(), |ready| ready.readable);
    assert_eq!(peek(&mut host, &mut socket, 0, 9).unwrap(), b"bye");
    // Data that the peer does not read makes its close a reset.
    drop(peer);
    until(&host, id(), |ready| ready.end);
    assert_eq!(host.tcp_discard(&mut socket, 3), Ok(()));
    host.abort(socket);
}

#[test]
fn full_unix_stream_reports_room() {
    let (mut host, mut socket, mut peer) = adopted();
    let mut bytes = vec![7; 64 << 10];
    let mut sent = 0;
    while let Ok(len) = host.tcp_send(&mut socket, &[VolatileSlice::from(&mut *bytes)]) {
        sent += len;
    }
    assert!(host.tcp_send_room(&mut socket) < 64 << 10);
    host.epoll()
        .wait(&mut Events::new(), Some(Duration::ZERO))
        .unwrap();
    let mut got = vec![0; sent];
    peer.read_exact(&mut got).unwrap();
    until(&host, id(), |ready| ready.writable);
    assert!(
        host.tcp_send(&mut socket, &[VolatileSlice::from(&mut *bytes)])
            .is_ok()
    );
}

#[test]
fn other_descriptors_are_refused_and_used_once() {
    let mut host = host(NONE);
    assert_eq!(host.tcp_adopt(id()).err(), Some(Failure::Invalid));
    let others: [OwnedFd; 3] = [
        TcpListener::bind("127.0.0.1:0").unwrap().into(),
        UnixDatagram::unbound().unwrap().into(),
        UnixStream::pair().unwrap().0.into(),
    ];
    for (given, is_adopted) in others.into_iter().zip([false, false, true]) {
        host.give_stream(given);
        assert_eq!(host.tcp_adopt(id()).is_ok(), is_adopted);
        assert_eq!(host.tcp_adopt(id()).err(), Some(Failure::Invalid));
    }
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    host.give_stream(ours.into());
    host.withdraw_stream();
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
}

#[test]
fn events_of_an_accepted_connection_move_to_its_flow() {
    let (listener, at) = listener(Ipv4Addr::LOCALHOST.into());
    let mut host = published(Protocol::Tcp, listener, at);
    let mut client = std::net::TcpStream::connect(at).unwrap();
    let mut socket = host.tcp_accept(0, flow(Kind::Tcp, u32::MAX)).unwrap().socket;
    client.write_all(b"data").unwrap();
    until(&host, flow(Kind::Tcp, u32::MAX), |ready| ready.readable);
    host.tcp_assign(id(), &mut socket).unwrap();
    until(&host, id(), |ready| ready.readable);
}
