//! Tests of guests that connect to a link's socket and disconnect.

use pontoon_test_support::exhaustion::without_descriptors;
use rustix::net::{SocketAddrUnix, bind, connect, listen, socket_with};

use super::*;
use crate::namespace;

/// Returns a listening socket with an abstract name, and the name.
fn listener() -> (OwnedFd, SocketAddrUnix) {
    let socket = socket();
    // The kernel chooses a free abstract name (unix(7), "Autobind feature").
    bind(&socket, &SocketAddrUnix::new_unnamed()).unwrap();
    listen(&socket, 8).unwrap();
    let name = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
    (socket, name)
}

fn socket() -> OwnedFd {
    socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap()
}

fn come(name: &SocketAddrUnix) -> Machine<Stream> {
    let socket = socket();
    connect(&socket, name).unwrap();
    Machine::new(socket)
}

fn link(listener: OwnedFd, one_off: bool, epoll: &Epoll) -> Socket<Stream> {
    let mut link = Socket::new(Source::Listening { listener, one_off }, 1500).unwrap();
    link.watch(epoll).unwrap();
    link
}

/// Returns the event sources of the link that are ready.
fn edges(epoll: &Epoll) -> Vec<Edge> {
    let mut events = Events::new();
    epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
    events.edges().map(|(edge, _)| edge).collect()
}

#[test]
fn guests_are_served_one_after_the_other() {
    let epoll = Epoll::new().unwrap();
    let (listener, name) = listener();
    let mut link = link(listener, false, &epoll);
    let lonely = head(PAIRS[0], 0);
    let sent = link.transmitter().send(whole(&lonely), lonely.bytes(), &[]);
    assert_eq!(sent, Err(TransmitError::Rejected), "no guest is connected");
    assert_eq!(burst(&mut link, |_| ()).rest, Rest::Drained);

    for nth in 0..3_u8 {
        let mut guest = come(&name);
        assert_eq!(edges(&epoll), [Edge::Control]);
        link.control(&epoll).unwrap();
        conformance::Guest::send(&mut guest, PAIRS[0], &[nth]);
        assert_eq!(edges(&epoll), [Edge::Link]);
        assert_eq!(drain(&mut link).0[0].1, [nth]);

        // An incomplete frame of one guest must not become part of the next guest's stream.
        guest.socket.write_all(&[0, 0, 1]).unwrap();
        drain(&mut link);
        drop(guest);
        assert!(edges(&epoll).contains(&Edge::Link));
        assert_eq!(
            burst(&mut link, |_| ()).rest,
            Rest::Disconnected(Disconnected::Closed)
        );
        assert_eq!(link.detach(&epoll), NextGuest::CanConnect);
        assert_eq!(edges(&epoll), []);
    }
}

#[test]
fn second_guest_is_refused_while_one_is_connected() {
    let epoll = Epoll::new().unwrap();
    let (listener, name) = listener();
    let mut link = link(listener, false, &epoll);
    let mut first = come(&name);
    let mut second = come(&name);
    link.control(&epoll).unwrap();
    assert_eq!(second.socket.read(&mut [0; 1]).unwrap(), 0);
    conformance::Guest::send(&mut first, PAIRS[0], b"x");
    assert_eq!(drain(&mut link).0.len(), 1);
}

#[test]
fn guest_that_connects_while_another_disconnects_is_served_next() {
    let epoll = Epoll::new().unwrap();
    let (listener, name) = listener();
    let mut link = link(listener, false, &epoll);
    let first = come(&name);
    link.control(&epoll).unwrap();
    drop(first);
    let mut second = come(&name);
    link.control(&epoll).unwrap();
    assert_eq!(
        burst(&mut link, |_| ()).rest,
        Rest::Disconnected(Disconnected::Closed)
    );
    assert_eq!(link.detach(&epoll), NextGuest::CanConnect);
    assert_eq!(edges(&epoll), [Edge::Control]);
    link.control(&epoll).unwrap();
    conformance::Guest::send(&mut second, PAIRS[0], b"x");
    assert_eq!(drain(&mut link).0.len(), 1);
}

#[test]
fn no_guest_connects_after_a_one_off_guest() {
    let epoll = Epoll::new().unwrap();
    let (listener, name) = listener();
    let mut listening = link(listener, true, &epoll);
    drop(come(&name));
    listening.control(&epoll).unwrap();
    assert_eq!(
        burst(&mut listening, |_| ()).rest,
        Rest::Disconnected(Disconnected::Closed)
    );
    assert_eq!(listening.detach(&epoll), NextGuest::Never);

    let (mut connected, guest) = open::<Stream>(1500);
    connected.watch(&epoll).unwrap();
    drop(guest);
    assert_eq!(connected.detach(&epoll), NextGuest::Never);
}

/// Runs in its own process, as it uses up all descriptors.
#[test]
fn guest_is_accepted_after_a_pause_if_no_descriptor_was_free() {
    namespace::run(
        "socket::tests::guests::guest_is_accepted_after_a_pause_if_no_descriptor_was_free",
        || {
            let epoll = Epoll::new().unwrap();
            let (listener, name) = listener();
            let mut link = link(listener, false, &epoll);
            let mut guest = come(&name);
            assert_eq!(edges(&epoll), [Edge::Control]);
            without_descriptors(|| link.control(&epoll)).unwrap();
            assert!(!link.poll_guest());
            assert_eq!(edges(&epoll), [], "the listener is not registered");

            std::thread::sleep(link.retry_accept(&epoll).unwrap());
            assert_eq!(link.retry_accept(&epoll), None);
            assert_eq!(edges(&epoll), [Edge::Control]);
            link.control(&epoll).unwrap();
            conformance::Guest::send(&mut guest, PAIRS[0], b"x");
            assert_eq!(drain(&mut link).0.len(), 1);
            assert_eq!(link.retry_accept(&epoll), None);
        },
    );
}
