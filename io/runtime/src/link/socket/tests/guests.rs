//! Guests that come and go.

use rustix::net::{SocketAddrUnix, bind, connect, listen, socket_with};

use super::*;
use crate::exhaustion::without_descriptors;
use crate::link::conformance::FRAMES;
use crate::namespace;

/// A listening socket without a file, and its name.
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

/// Which of the link's sources have something to say.
fn edges(epoll: &Epoll) -> Vec<Edge> {
    let mut events = Events::new();
    epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
    events.edges().map(|(edge, _)| edge).collect()
}

#[test]
fn one_after_the_other_is_served() {
    let epoll = Epoll::new().unwrap();
    let (listener, name) = listener();
    let mut link = link(listener, false, &epoll);
    let lonely = head(PAIRS[0], 0);
    let sent = link.transmitter().send(whole(&lonely), lonely.bytes(), &[]);
    assert_eq!(sent, Err(TransmitError::Rejected), "there is nobody");
    assert_eq!(burst(&mut link, |_| ()).rest, Rest::Drained);

    for nth in 0..3_u8 {
        let mut guest = come(&name);
        assert_eq!(edges(&epoll), [Edge::Control]);
        link.control(&epoll).unwrap();
        conformance::Guest::send(&mut guest, PAIRS[0], &[nth]);
        assert_eq!(edges(&epoll), [Edge::Link]);
        assert_eq!(drain(&mut link).0[0].1, [nth]);

        // Half a frame of one guest is no part of the next one's.
        guest.socket.write_all(&[0, 0, 1]).unwrap();
        drain(&mut link);
        drop(guest);
        assert!(edges(&epoll).contains(&Edge::Link));
        assert_eq!(
            burst(&mut link, |_| ()).rest,
            Rest::Disconnected(Disconnected::Closed)
        );
        assert!(link.detach(&epoll), "another one may come");
        assert_eq!(edges(&epoll), []);
    }
}

#[test]
fn a_second_one_at_a_time_is_turned_away() {
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
fn one_that_comes_as_the_other_goes_is_the_next_one() {
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
    assert!(link.detach(&epoll));
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
    assert!(!listening.detach(&epoll));

    let (mut connected, guest) = open::<Stream>(1500);
    connected.watch(&epoll).unwrap();
    drop(guest);
    assert!(!connected.detach(&epoll));
}

/// In a process of its own, as it takes every descriptor.
#[test]
fn one_that_found_no_descriptor_is_served_when_there_is_one() {
    namespace::run(
        "link::socket::tests::guests::one_that_found_no_descriptor_is_served_when_there_is_one",
        || {
            let epoll = Epoll::new().unwrap();
            let (listener, name) = listener();
            let mut link = link(listener, false, &epoll);
            let mut guest = come(&name);
            assert_eq!(edges(&epoll), [Edge::Control]);
            without_descriptors(|| link.control(&epoll)).unwrap();
            assert!(!link.has_guest());
            assert_eq!(edges(&epoll), [], "it rests");

            std::thread::sleep(link.sleep(&epoll, FRAMES).unwrap());
            assert_eq!(link.sleep(&epoll, FRAMES), None);
            assert_eq!(edges(&epoll), [Edge::Control]);
            link.control(&epoll).unwrap();
            conformance::Guest::send(&mut guest, PAIRS[0], b"x");
            assert_eq!(drain(&mut link).0.len(), 1);
            assert_eq!(link.sleep(&epoll, FRAMES), None);
        },
    );
}
