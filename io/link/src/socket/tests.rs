use std::io::{ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pontoon_engine::link::TransmitError;
use pontoon_engine::{Frame, Transmit};
use pontoon_event::{Edge, Events};
use pontoon_wire::checksum;
use pontoon_wire::vnet::Offload;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::conformance::{
    self, AddressPair, FRAMES_AND_ROOM, PAIRS, checked, datagram, drain, head, head_up, suite, whole,
};
use crate::{BURST, ReceivedBurst, Rest, StopAt};

mod guests;

mod stream {
    use super::*;

    suite!(Machine<Stream>);

    mod captured {
        use super::super::*;
        suite!(conformance::CapturingGuest<Machine<Stream>>);
    }
}

mod packet {
    use super::*;

    suite!(Machine<Packet>);
}
/// A guest that sends and receives frames at the other end of the link's socket.
struct Machine<F> {
    socket: UnixStream,
    framing: PhantomData<F>,
}

/// The guest's side of a framing: type of the socket, sending and receiving of a frame.
trait GuestFraming: Framing {
    const KIND: SocketType;

    fn put(socket: &UnixStream, frame: &[u8]);

    fn take(socket: &UnixStream) -> std::io::Result<Vec<u8>>;
}

impl GuestFraming for Stream {
    const KIND: SocketType = SocketType::STREAM;

    fn put(mut socket: &UnixStream, frame: &[u8]) {
        let len = u32::try_from(frame.len()).unwrap();
        socket.write_all(&[&len.to_be_bytes(), frame].concat()).unwrap();
    }

    fn take(mut socket: &UnixStream) -> std::io::Result<Vec<u8>> {
        let mut len = [0; 4];
        socket.read_exact(&mut len)?;
        let mut frame = vec![0; u32::from_be_bytes(len).try_into().unwrap()];
        socket.read_exact(&mut frame)?;
        Ok(frame)
    }
}

impl GuestFraming for Packet {
    const KIND: SocketType = SocketType::SEQPACKET;

    fn put(mut socket: &UnixStream, frame: &[u8]) {
        assert_eq!(socket.write(frame).unwrap(), frame.len());
    }

    fn take(mut socket: &UnixStream) -> std::io::Result<Vec<u8>> {
        let mut frame = vec![0; MAX_FRAME];
        let len = socket.read(&mut frame)?;
        frame.truncate(len);
        Ok(frame)
    }
}

/// Returns two connected sockets: the link's, and the guest's.
fn pair<F: GuestFraming>() -> (OwnedFd, Machine<F>) {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, F::KIND, SocketFlags::CLOEXEC, None).unwrap();
    (ours, Machine::new(theirs))
}

fn open<F: GuestFraming>(mtu: u16) -> (Socket<F>, Machine<F>) {
    let (ours, guest) = pair();
    (Socket::new(Source::Connected(ours), mtu).unwrap(), guest)
}

impl<F: GuestFraming> Machine<F> {
    fn new(socket: OwnedFd) -> Self {
        let socket = UnixStream::from(socket);
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        Self {
            socket,
            framing: PhantomData,
        }
    }
}

impl<F: GuestFraming> conformance::Guest for Machine<F> {
    type Link = Socket<F>;

    fn open(mtu: u16) -> (Socket<F>, Self) {
        open(mtu)
    }

    fn send(&mut self, pair: AddressPair, data: &[u8]) {
        let head = head_up(pair, data.len());
        let mut frame = [head.bytes(), data].concat();
        checksum::complete(&mut frame, head.checksum, []).unwrap();
        F::put(&self.socket, &frame);
    }

    fn receive(&mut self, pair: AddressPair) -> Option<Vec<u8>> {
        let frame = match F::take(&self.socket) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            frame => frame.unwrap(),
        };
        Some(checked(&frame, pair))
    }

    fn receives(&mut self, _: AddressPair) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let receives = F::take(&self.socket).is_ok();
        self.socket.set_nonblocking(false).unwrap();
        receives
    }

    fn leave(self) {}
}

/// Disconnects at once: a process that another test has just forked may hold a copy of the descriptor.
impl<F> Drop for Machine<F> {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Receives one burst.
fn burst<F: Framing>(link: &mut Socket<F>, sink: impl FnOnce(&[Frame<'_>])) -> ReceivedBurst {
    link.halves().0.receive(BURST, StopAt::Empty, sink)
}

/// Sends datagrams until the link refuses one, and returns the number of accepted datagrams.
fn fill<F: Framing>(link: &mut Socket<F>) -> u16 {
    for nth in 0_u16.. {
        let data = [&nth.to_be_bytes()[..], &[0; 998]].concat();
        let head = head(PAIRS[0], data.len());
        let transmitter = link.transmitter();
        match transmitter.send(whole(&head), head.bytes(), &data) {
            Ok(()) => {}
            Err(TransmitError::Full) => return nth,
            Err(TransmitError::Rejected) => panic!("the link lost its guest"),
        }
    }
    unreachable!("a link holds less");
}

/// Checks that the link refuses frames when it is full, and reports when it has room again.
fn pushes_back<F: GuestFraming>() {
    let (mut link, mut guest) = open::<F>(1500);
    let epoll = Epoll::new().unwrap();
    link.watch(&epoll).unwrap();
    let taken = fill(&mut link);
    assert!(taken > 100, "{taken}");
    assert!(link.transmitter().reserve(1, 42, 1000).is_none());
    assert_eq!(link.take_full(), Ok(true));
    assert_eq!(link.sleep(&epoll, FRAMES_AND_ROOM), None, "an event reports it");
    let mut events = Events::new();
    epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
    assert_eq!(events.edges().count(), 0);

    let mut received = 0_u16;
    while received < taken {
        let data = conformance::Guest::receive(&mut guest, PAIRS[0]).unwrap();
        assert_eq!((&data[..2], data.len()), (&received.to_be_bytes()[..], 1000));
        received += 1;
        epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        if events.edges().any(|(edge, _)| edge == Edge::Room) {
            link.transmitter().flush();
            if link.take_full().unwrap() {
                assert_eq!(link.sleep(&epoll, FRAMES_AND_ROOM), None);
            }
        }
    }
    assert_eq!(link.take_full(), Ok(false));
    assert!(!conformance::Guest::receives(&mut guest, PAIRS[0]));
    assert!(link.transmitter().reserve(1, 42, 1000).is_some());
}

#[test]
fn full_stream_refuses_frames_until_the_guest_reads() {
    pushes_back::<Stream>();
}

#[test]
fn full_packet_socket_refuses_frames_until_the_guest_reads() {
    pushes_back::<Packet>();
}

/// On a datagram socket only a failed send shows that the peer has closed its socket.
#[test]
fn datagram_socket_carries_frames() {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
    let mut link = Socket::<Packet>::new(Source::Connected(ours), 1500).unwrap();
    let mut guest = Machine::<Packet>::new(theirs);
    conformance::Guest::send(&mut guest, PAIRS[0], b"up");
    let datagrams = drain(&mut link).0;
    assert_eq!(datagrams, [(conformance::to(PAIRS[0]), b"up".to_vec())]);
    let head = head(PAIRS[0], 4);
    let send = |link: &mut Socket<Packet>| {
        let sent = link.transmitter().send(whole(&head), head.bytes(), b"down");
        link.transmitter().flush();
        sent
    };
    assert_eq!(send(&mut link), Ok(()));
    let received = conformance::Guest::receive(&mut guest, PAIRS[0]);
    assert_eq!(received, Some(b"down".to_vec()));

    // An empty datagram is neither a frame nor the end of the connection.
    rustix::net::send(&guest.socket, &[], rustix::net::SendFlags::empty()).unwrap();
    let nothing = burst(&mut link, |_| panic!("a frame of no bytes"));
    assert_eq!((nothing.malformed, nothing.rest), (1, Rest::Drained));
    drop(guest);
    assert_eq!(burst(&mut link, |_| ()).rest, Rest::Drained);
    assert_eq!(send(&mut link), Ok(()));
    assert_eq!(link.take_full(), Err(Disconnected::Closed));
}

/// QEMU's virtio-net sends frames of up to 64 KiB with partial checksums.
#[test]
fn long_frame_with_partial_checksum_is_accepted() {
    let (mut link, guest) = open::<Stream>(1500);
    let data = vec![7; 65_000];
    let head = head_up(PAIRS[1], data.len());
    Stream::put(&guest.socket, &[head.bytes(), &data[..]].concat());
    let mut received = Vec::new();
    for _ in 0..4 {
        burst(&mut link, |frames| {
            assert_eq!(frames[0].offload, Offload::NONE);
            received.extend(frames.iter().filter_map(datagram));
        });
    }
    assert_eq!(received, [(conformance::to(PAIRS[1]), data)]);
}

/// Reads of a stream may end within a frame.
#[test]
fn frames_that_arrive_in_several_reads_are_joined() {
    let (mut link, mut guest) = open::<Stream>(65_520);
    let head = head_up(PAIRS[0], 500);
    let frame = [head.bytes(), &[3; 500]].concat();
    let len = u32::try_from(frame.len()).unwrap();
    let bytes = [&len.to_be_bytes()[..], &frame].concat().repeat(3);
    for piece in bytes.chunks(7) {
        guest.socket.write_all(piece).unwrap();
        let mut seen = 0;
        let burst = burst(&mut link, |frames| seen = frames.len());
        assert_eq!(burst.frames, seen);
        assert!(seen <= 1);
    }
    let rest = drain(&mut link).0;
    assert!(rest.is_empty(), "{rest:?}");
}

#[test]
fn invalid_frames_are_counted_or_end_the_connection() {
    let (mut link, mut guest) = open::<Stream>(1500);
    guest.socket.write_all(&[0; 8]).unwrap();
    let empty = burst(&mut link, |_| panic!("a frame of no bytes"));
    assert_eq!((empty.malformed, empty.frames), (2, 0));
    guest.socket.write_all(&[0, 1, 0, 99]).unwrap();
    let long = burst(&mut link, |_| panic!("a frame of more than 64 KiB"));
    assert!(
        matches!(long.rest, Rest::Disconnected(Disconnected::Protocol(_))),
        "{long:?}"
    );

    let (mut link, guest) = open::<Packet>(1500);
    let mut long = vec![0; MAX_FRAME + 1];
    Packet::put(&guest.socket, &long);
    long.resize(70_000, 0);
    Packet::put(&guest.socket, &long);
    let long = burst(&mut link, |_| panic!("a frame of more than 64 KiB"));
    assert_eq!((long.malformed, long.rest), (2, Rest::Drained));
}

#[test]
fn end_of_stream_within_a_frame_disconnects() {
    let (mut link, mut guest) = open::<Stream>(1500);
    guest.socket.write_all(&[0, 0, 1, 0, 1, 2, 3]).unwrap();
    drop(guest);
    let how = (0..3)
        .map(|_| burst(&mut link, |_| panic!("half a frame")).rest)
        .last();
    assert_eq!(how, Some(Rest::Disconnected(Disconnected::Closed)));
}
