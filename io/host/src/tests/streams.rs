use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use pontoon_test_support::exhaustion::without_descriptors;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use super::*;
use crate::namespace::{self, ip};

const FLOW: u32 = 5;

fn id() -> FlowId {
    flow(Kind::Tcp, FLOW)
}

/// Returns a connection of the host to a listener on `ip`, and the accepted socket.
fn connection(host: &mut KernelHost, ip: IpAddr) -> (Socket, TcpStream) {
    let (listener, at) = listener(ip);
    let (socket, connect) = host.tcp_connect(id(), at).unwrap();
    assert_eq!(connect, Connect::Done, "loopback answers within the call");
    (socket, listener.accept().unwrap().0)
}

fn peek(host: &mut KernelHost, socket: &mut Socket, at: u32, len: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; len];
    let (first, second) = bytes.split_at_mut(len / 2);
    let into = [VolatileSlice::from(first), VolatileSlice::from(second)];
    let len = host.tcp_peek(socket, at, &into)?;
    bytes.truncate(len);
    Ok(bytes)
}

/// Returns a host that uses `SO_PEEK_OFF` if the kernel has it, and a host that does not use it.
fn variants() -> [KernelHost; 2] {
    [host(HostFeatures::probe(&Disabled::default())), host(NONE)]
}

/// A peek stops in front of urgent data, but returns it inline like the other bytes.
#[test]
fn urgent_data_is_received_inline() {
    for ip in loopbacks("urgent_data_is_received_inline") {
        let (listener, at) = listener(ip);
        let mut host = published(Protocol::Tcp, listener, at);
        let client = TcpStream::connect(at).unwrap();
        let accepted = host.tcp_accept(0, id()).unwrap().socket;
        in_line(&mut host, accepted, client);
        for mut host in variants() {
            let (socket, peer) = connection(&mut host, ip);
            in_line(&mut host, socket, peer);
        }
    }
}

fn in_line(host: &mut KernelHost, mut socket: Socket, mut peer: TcpStream) {
    let mut all = Vec::new();
    peer.write_all(b"ab").unwrap();
    rustix::net::send(&peer, b"c", rustix::net::SendFlags::OOB).unwrap();
    peer.write_all(b"def").unwrap();
    until(host, id(), |ready| ready.readable && ready.urgent);
    while all.len() < 6 {
        let got = peek(host, &mut socket, 0, 10).unwrap();
        host.tcp_discard(&mut socket, u32::try_from(got.len()).unwrap())
            .unwrap();
        all.extend(got);
    }
    assert_eq!(all, b"abcdef");
    assert_eq!(peek(host, &mut socket, 0, 10), Err(Failure::WouldBlock));
}

/// Bytes that are in flight to the guest remain in the receive queue, and must not hide the reset behind them.
#[test]
fn reset_after_peeked_bytes_is_an_error() {
    for ip in loopbacks("reset_after_peeked_bytes_is_an_error") {
        for mut host in variants() {
            let (mut socket, mut peer) = connection(&mut host, ip);
            peer.write_all(b"0123456789").unwrap();
            until(&host, id(), |ready| ready.readable);
            assert_eq!(peek(&mut host, &mut socket, 0, 10).unwrap().len(), 10);
            rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
            drop(peer);
            until(&host, id(), |ready| ready.error);
            assert_eq!(peek(&mut host, &mut socket, 10, 10), Err(Failure::Reset));
        }
    }
}

#[test]
fn peek_starts_at_any_offset_and_discard_removes_bytes() {
    for ip in loopbacks("peek_starts_at_any_offset_and_discard_removes_bytes") {
        for mut host in variants() {
            let (mut socket, mut peer) = connection(&mut host, ip);
            let socket = &mut socket;
            assert_eq!(peek(&mut host, socket, 0, 4), Err(Failure::WouldBlock));
            peer.write_all(b"0123456789").unwrap();
            until(&host, id(), |ready| ready.readable);

            assert_eq!(peek(&mut host, socket, 0, 4).unwrap(), b"0123");
            assert_eq!(peek(&mut host, socket, 4, 4).unwrap(), b"4567");
            assert_eq!(
                peek(&mut host, socket, 2, 2).unwrap(),
                b"23",
                "again, from further back"
            );
            host.tcp_discard(socket, 3).unwrap();
            assert_eq!(peek(&mut host, socket, 1, 4).unwrap(), b"4567");
            assert_eq!(peek(&mut host, socket, 5, 4).unwrap(), b"89");
            assert_eq!(peek(&mut host, socket, 7, 4), Err(Failure::WouldBlock));

            peer.write_all(b"ab").unwrap();
            peer.shutdown(Shutdown::Write).unwrap();
            until(&host, id(), |ready| ready.end && !ready.error);
            assert_eq!(peek(&mut host, socket, 7, 4).unwrap(), b"ab");
            assert_eq!(
                peek(&mut host, socket, 9, 4).unwrap(),
                b"",
                "the end, behind what is in flight"
            );
            host.tcp_discard(socket, 9).unwrap();
            assert_eq!(peek(&mut host, socket, 0, 4).unwrap(), b"");
        }
    }
}

#[test]
fn peek_without_peek_off_is_limited_to_the_size_of_its_buffer() {
    let mut host = host(NONE);
    let (mut socket, mut peer) = connection(&mut host, Family::V4.loopback());
    peer.write_all(&[1; 20_000]).unwrap();
    peer.write_all(b"behind").unwrap();
    let behind = loop {
        match peek(&mut host, &mut socket, 20_000, 10) {
            Err(Failure::WouldBlock) => until(&host, id(), |ready| ready.readable),
            found => break found,
        }
    };
    assert_eq!(behind.unwrap(), b"behind");
    let bound = u32::try_from(stream::ASIDE).unwrap();
    assert_eq!(peek(&mut host, &mut socket, bound, 10), Err(Failure::WouldBlock));
    assert_eq!(peek(&mut host, &mut socket, bound + 1, 10), Err(Failure::Invalid));
}

#[test]
fn send_accepts_data_until_the_buffer_is_full() {
    let mut host = host(ALL);
    let (mut socket, mut peer) = connection(&mut host, Family::V4.loopback());
    let before = host.tcp_send_room(&mut socket);
    let mut block = vec![7; 65536];
    let mut sent = 0;
    let end = loop {
        match host.tcp_send(&mut socket, &slice(&mut block)) {
            Ok(len) => sent += len,
            Err(end) => break end,
        }
    };
    assert_eq!(end, Failure::WouldBlock);
    assert!(before > 0 && host.tcp_send_room(&mut socket) < before);
    host.tcp_shutdown(&mut socket).unwrap();
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), sent);
    until(&host, id(), |ready| ready.writable);
}

#[test]
fn refused_connect_is_reported_at_once() {
    for ip in loopbacks("refused_connect_is_reported_at_once") {
        let (_, closed) = listener(ip);
        assert_eq!(host(ALL).tcp_connect(id(), closed).unwrap_err(), Failure::Refused);
    }
}

#[test]
fn abort_resets_the_connection_and_close_does_not() {
    let mut host = host(ALL);
    let (socket, mut peer) = connection(&mut host, Family::V4.loopback());
    host.abort(socket);
    assert_eq!(
        peer.read(&mut [0]).unwrap_err().kind(),
        io::ErrorKind::ConnectionReset
    );
    let (socket, mut peer) = connection(&mut host, Family::V4.loopback());
    host.close(socket);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
}

#[test]
fn reset_by_the_peer_is_reported() {
    let mut host = host(ALL);
    let (mut socket, peer) = connection(&mut host, Family::V4.loopback());
    tcp::reset_on_close(&peer).unwrap();
    drop(peer);
    until(&host, id(), |ready| ready.error);
    assert_eq!(host.tcp_error(&mut socket), Some(Failure::Reset));
    assert_eq!(
        host.tcp_error(&mut socket),
        None,
        "the error was returned already"
    );
    assert_eq!(host.tcp_send(&mut socket, &slice(&mut [0])), Err(Failure::Reset));
}

#[test]
fn clients_of_published_ports_are_accepted() {
    for ip in loopbacks("clients_of_published_ports_are_accepted") {
        let (listener, at) = listener(ip);
        let mut host = published(Protocol::Tcp, listener, at);
        assert_eq!(host.tcp_accept(0, id()).unwrap_err(), Failure::WouldBlock);
        let mut client = TcpStream::connect(at).unwrap();
        assert!(
            events(&host)
                .iter()
                .any(|(who, _)| who.kind == Kind::Listener && who.index == 0)
        );
        let mut accepted = host.tcp_accept(0, id()).unwrap();
        assert_eq!(accepted.peer, client.local_addr().unwrap());
        client.write_all(b"hello").unwrap();
        until(&host, id(), |ready| ready.readable);
        assert_eq!(peek(&mut host, &mut accepted.socket, 0, 9).unwrap(), b"hello");
        assert_eq!(host.tcp_accept(0, id()).unwrap_err(), Failure::WouldBlock);
        assert_eq!(host.tcp_accept(1, id()).unwrap_err(), Failure::Invalid);
    }
}

/// Runs in its own process, as it uses up all descriptors.
#[test]
fn listener_without_descriptors_is_registered_again_when_a_socket_closes() {
    namespace::run(
        "tests::streams::listener_without_descriptors_is_registered_again_when_a_socket_closes",
        || {
            ip("link set lo up");
            let (listener, at) = listener(Family::V4.loopback());
            let mut host = published(Protocol::Tcp, listener, at);
            let socket = host.udp_open(flow(Kind::Udp, 1), at.ip()).unwrap();
            let _client = TcpStream::connect(at).unwrap();
            assert_eq!(events(&host).len(), 2, "the listener, and the new socket");

            let accepted = without_descriptors(|| host.tcp_accept(0, id()));
            assert_eq!(accepted.unwrap_err(), Failure::Exhausted);
            host.close(socket);
            until(&host, flow_of_listener(), |ready| ready.readable);
            assert!(host.tcp_accept(0, id()).is_ok());
            assert_eq!(host.retry_accept(), None);
        },
    );
}

/// Another process holds the descriptors, so that no event reports a free one.
#[test]
fn listener_without_descriptors_is_registered_again_after_a_pause() {
    namespace::run(
        "tests::streams::listener_without_descriptors_is_registered_again_after_a_pause",
        || {
            ip("link set lo up");
            let (listener, at) = listener(Family::V4.loopback());
            let mut host = published(Protocol::Tcp, listener, at);
            let _client = TcpStream::connect(at).unwrap();
            until(&host, flow_of_listener(), |ready| ready.readable);
            let accepted = without_descriptors(|| host.tcp_accept(0, id()));
            assert_eq!(accepted.unwrap_err(), Failure::Exhausted);

            let pause = host.retry_accept().unwrap();
            assert!(pause <= Duration::from_millis(100), "{pause:?}");
            assert_eq!(events(&host), [], "the listener is not registered");
            std::thread::sleep(pause);
            host.prepare();
            until(&host, flow_of_listener(), |ready| ready.readable);
            assert!(host.tcp_accept(0, id()).is_ok());
        },
    );
}

/// The other client's event came before the first one was accepted, and no further event reports it.
#[test]
fn a_listener_is_registered_again_after_the_registration_of_a_client_failed() {
    namespace::run(
        "tests::streams::a_listener_is_registered_again_after_the_registration_of_a_client_failed",
        || {
            ip("link set lo up");
            let (listener, at) = listener(Family::V4.loopback());
            let mut host = published(Protocol::Tcp, listener, at);
            let _clients = [(); 2].map(|()| TcpStream::connect(at).unwrap());
            until(&host, flow_of_listener(), |ready| ready.readable);
            let accepted = without_registrations(|| host.tcp_accept(0, id()));
            assert_eq!(accepted.unwrap_err(), Failure::Exhausted);

            std::thread::sleep(host.retry_accept().unwrap());
            host.prepare();
            until(&host, flow_of_listener(), |ready| ready.readable);
            assert!(host.tcp_accept(0, id()).is_ok());
        },
    );
}

/// Does something in a thread whose sockets the kernel does not register with an epoll instance, for want of memory.
fn without_registrations<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let add = u64::from(libc::EPOLL_CTL_ADD.unsigned_abs());
    let is_add = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, add).unwrap();
    let rule = SeccompRule::new(vec![is_add]).unwrap();
    let filter = SeccompFilter::new(
        [(libc::SYS_epoll_ctl, vec![rule])].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOMEM.unsigned_abs()),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    std::thread::scope(|scope| {
        let filtered = scope.spawn(|| {
            seccompiler::apply_filter(&program).unwrap();
            act()
        });
        filtered.join().unwrap()
    })
}

fn flow_of_listener() -> FlowId {
    FlowId {
        kind: Kind::Listener,
        worker: WorkerId(0),
        index: 0,
        generation: 0,
    }
}

#[test]
fn event_reports_the_end_of_a_pending_connect() {
    namespace::run(
        "tests::streams::event_reports_the_end_of_a_pending_connect",
        || {
            // No host behind this tap replies to the SYN.
            let _tap = pontoon_sys::tun::open("tap0", pontoon_sys::tun::TapOffload::NONE, 1).unwrap();
            ip("link set tap0 up");
            ip("addr add 10.9.9.1/24 dev tap0");
            ip("neigh add 10.9.9.2 lladdr 02:00:00:00:00:02 dev tap0 nud permanent");
            ip("route add unreachable 10.8.8.0/24");
            let mut host = host(ALL);
            let to = "10.9.9.2:80".parse().unwrap();
            let (mut socket, connect) = host.tcp_connect(id(), to).unwrap();
            assert_eq!(connect, Connect::Pending);
            assert_eq!(host.tcp_connected(&mut socket), Err(Failure::WouldBlock));
            host.abort(socket);
            let unreachable = "10.8.8.1:80".parse().unwrap();
            assert_eq!(
                host.tcp_connect(id(), unreachable).unwrap_err(),
                Failure::HostUnreachable
            );
            let nowhere = "10.7.7.7:80".parse().unwrap();
            assert_eq!(
                host.tcp_connect(id(), nowhere).unwrap_err(),
                Failure::NetUnreachable
            );
        },
    );
}

#[test]
fn outbound_option_sets_the_source_address() {
    namespace::run("tests::streams::outbound_option_sets_the_source_address", || {
        ip("link set lo up");
        ip("addr add 192.0.2.1/32 dev lo");
        ip("addr add 192.0.2.2/32 dev lo");
        let outbound = |outbound| KernelHost::new(ALL, outbound, [None, None]).unwrap();
        let (listener, at) = listener("192.0.2.1".parse().unwrap());

        let mut host = outbound(Outbound {
            v4: Some("192.0.2.2".parse().unwrap()),
            ..Outbound::default()
        });
        let _kept = host.tcp_connect(id(), at).unwrap();
        assert_eq!(listener.accept().unwrap().1.ip().to_string(), "192.0.2.2");

        let mut host = outbound(Outbound {
            interface: Some("lo".into()),
            ..Outbound::default()
        });
        assert!(host.tcp_connect(id(), at).is_ok());
        let mut host = outbound(Outbound {
            interface: Some("nowhere0".into()),
            ..Outbound::default()
        });
        assert_eq!(host.tcp_connect(id(), at).unwrap_err(), Failure::Other(19));
    });
}

/// The kernel connects to 127.0.0.2 from 127.0.0.1; so only the check of the host's addresses recognizes the
/// destination.
#[test]
fn connection_to_the_host_itself_is_recognized() {
    for ip in loopbacks("connection_to_the_host_itself_is_recognized") {
        let mut host = host(NONE);
        let (mut socket, _peer) = connection(&mut host, ip);
        assert!(host.tcp_reaches_host(&mut socket, ip, Duration::ZERO));
        let elsewhere: IpAddr = match ip {
            IpAddr::V4(_) => [192, 0, 2, 1].into(),
            IpAddr::V6(_) => "2001:db8::1".parse().unwrap(),
        };
        assert!(!host.tcp_reaches_host(&mut socket, elsewhere, Duration::from_secs(60)));
        if ip.is_ipv4() {
            let second = IpAddr::from([127, 0, 0, 2]);
            let (mut socket, _peer) = connection(&mut host, second);
            assert!(!host.tcp_reaches_host(&mut socket, second, Duration::ZERO));
            assert!(host.tcp_reaches_host(&mut socket, second, Duration::from_secs(1)));
        }
    }
}

/// Data behind an urgent byte is not the end of the stream, although the peer has sent its FIN.
#[test]
fn urgent_data_before_the_fin_is_not_reported_as_the_end() {
    for ip in loopbacks("urgent_data_before_the_fin_is_not_reported_as_the_end") {
        for (nth, mut host) in variants().into_iter().enumerate() {
            let (mut socket, mut peer) = connection(&mut host, ip);
            peer.write_all(b"ab").unwrap();
            rustix::net::send(&peer, b"c", rustix::net::SendFlags::OOB).unwrap();
            peer.write_all(b"def").unwrap();
            peer.shutdown(Shutdown::Write).unwrap();
            until(&host, id(), |ready| ready.readable && ready.urgent && ready.end);
            assert_eq!(peek(&mut host, &mut socket, 0, 10).unwrap(), b"ab");
            // The bytes "ab" are in flight to the guest.
            let behind = peek(&mut host, &mut socket, 2, 10);
            assert_ne!(behind, Ok(Vec::new()), "variant {nth}: an end, with cdef unread");
        }
    }
}
