//! Tests that every type of link has to pass; the macro [`suite`] adds them to the tests of a link.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::Frame;
use pontoon_engine::Transmit;
use pontoon_engine::link::{Room, TransmitError};
use pontoon_event::{Edge, Epoll, Events};
use pontoon_wire::checksum::Sum;
use pontoon_wire::frame::{Body, HEAD, Transport, parse};
use pontoon_wire::vnet::{Offload, Segmentation};
use pontoon_wire::{Mac, emit, protocol};

use super::capturing::{CaptureQueue, CapturingLink};
use super::{AwaitedEvents, BURST, Link, Receive, Rest, StopAt};

/// Ethernet address of the guest.
const GUEST: Mac = Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
/// Ethernet address of the gateway.
const OURS: Mac = Mac([0x9a, 0x55, 0x9a, 0x55, 0x9a, 0x55]);

/// IP addresses of the guest and of the gateway, of one address family.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressPair {
    pub(super) guest: &'static str,
    pub(super) gateway: &'static str,
}

/// Events of a sleeping worker without frames to send: it waits for frames from the guest. With `room`, the link is
/// full.
pub(super) const FRAMES: AwaitedEvents = AwaitedEvents {
    frames: true,
    room: false,
};
pub(super) const FRAMES_AND_ROOM: AwaitedEvents = AwaitedEvents {
    frames: true,
    room: true,
};

/// Events of a sleeping worker whose rate limit does not permit it to receive the frames that are pending.
pub(super) const NO_FRAMES: AwaitedEvents = AwaitedEvents {
    frames: false,
    room: false,
};

pub(super) const PAIRS: [AddressPair; 2] = [
    AddressPair {
        guest: "10.0.2.15",
        gateway: "10.0.2.2",
    },
    AddressPair {
        guest: "fd00::15",
        gateway: "fd00::2",
    },
];

/// UDP ports of the guest and of the gateway.
pub(super) const PORTS: (u16, u16) = (7, 9);

/// A guest at the other end of a link under test: a UDP socket or a simulation of one.
pub(super) trait Guest: Sized {
    /// Type of the link under test.
    type Link: Link;

    /// Runs the test `test` with the full name `name`, in the environment that the link needs, or skips it.
    fn run(name: &str, test: fn()) {
        let _ = name;
        test();
    }

    /// Returns a link and its guest, whose interface has this MTU.
    fn open(mtu: u16) -> (Self::Link, Self);

    /// Waits until the link has received this number of frames, for links that deliver the guest's frames with a delay.
    fn settle(link: &mut Self::Link, frames: usize) {
        let _ = (link, frames);
    }

    /// Sends a datagram from the guest's UDP port to the gateway's.
    fn send(&mut self, pair: AddressPair, data: &[u8]);

    /// Returns the data of the next datagram from the gateway that the guest receives; `None` if none arrives within
    /// two seconds. The guest accepts only datagrams with a valid checksum, or with offload metadata in its place.
    fn receive(&mut self, pair: AddressPair) -> Option<Vec<u8>>;

    /// Returns true if the guest has a datagram to receive now.
    fn receives(&mut self, pair: AddressPair) -> bool;

    /// Disconnects the guest, for example by deleting its interface or closing its socket.
    fn leave(self);
}

/// A guest whose link is wrapped in a [`CapturingLink`].
pub(super) struct CapturingGuest<G>(G);

impl<G: Guest> Guest for CapturingGuest<G> {
    type Link = CapturingLink<G::Link>;

    fn run(name: &str, test: fn()) {
        G::run(name, test);
    }

    fn open(mtu: u16) -> (Self::Link, Self) {
        let (link, guest) = G::open(mtu);
        let capture_queue = Arc::new(CaptureQueue::new(96));
        (CapturingLink::new(link, capture_queue), Self(guest))
    }

    fn settle(link: &mut Self::Link, frames: usize) {
        G::settle(link.inner(), frames);
    }

    fn send(&mut self, pair: AddressPair, data: &[u8]) {
        self.0.send(pair, data);
    }

    fn receive(&mut self, pair: AddressPair) -> Option<Vec<u8>> {
        self.0.receive(pair)
    }

    fn receives(&mut self, pair: AddressPair) -> bool {
        self.0.receives(pair)
    }

    fn leave(self) {
        self.0.leave();
    }
}

/// Defines the conformance tests for a link whose guest has the type `$guest`.
macro_rules! suite {
    ($guest:ty) => {
        $crate::conformance::suite! { $guest:
            datagrams_of_every_size_are_carried
            bursts_are_bounded_and_report_remaining_frames
            frame_wakes_a_sleeping_worker
            frames_beyond_the_rate_limit_do_not_wake_a_sleeping_worker
            uncommitted_frames_of_a_reservation_are_not_sent
            frames_beyond_the_limits_are_refused
            disconnected_guest_is_reported
        }
    };
    ($guest:ty: $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                let name = concat!(module_path!(), "::", stringify!($case));
                let name = name.split_once("::").unwrap().1;
                <$guest as $crate::conformance::Guest>::run(name, || {
                    $crate::conformance::$case::<$guest>();
                });
            }
        )*
    };
}
pub(super) use suite;

pub(super) fn datagrams_of_every_size_are_carried<G: Guest>() {
    let (mut link, mut guest) = G::open(65_520);
    drain(&mut link);
    for pair in PAIRS {
        for len in [0, 1, 1000, 65_000] {
            let data: Vec<u8> = (0..=255).cycle().take(len).collect();
            guest.send(pair, &data);
            G::settle(&mut link, 1);
            assert_eq!(drain(&mut link).0, [(to(pair), data.clone())]);

            let head = head(pair, len);
            let mut transmitter = link.transmitter();
            transmitter.send(whole(&head), head.bytes(), &data).unwrap();
            let mut room = transmitter.reserve(1, head.bytes().len(), len).unwrap();
            fill(&room, &data);
            room.commit(whole(&head), head.bytes(), len).unwrap();
            drop(room);
            drop(transmitter);
            flush(&mut link);
            for _ in 0..2 {
                assert_eq!(guest.receive(pair).as_ref(), Some(&data), "{len} bytes");
            }
        }
    }
}

pub(super) fn bursts_are_bounded_and_report_remaining_frames<G: Guest>() {
    let (mut link, mut guest) = G::open(1500);
    drain(&mut link);
    for nth in 0..40_u8 {
        guest.send(PAIRS[0], &[nth]);
    }
    G::settle(&mut link, 40);
    let (datagrams, bursts) = drain(&mut link);
    let order: Vec<u8> = datagrams.iter().map(|(_, data)| data[0]).collect();
    assert_eq!(order, (0..40).collect::<Vec<_>>());
    assert!(bursts.iter().all(|frames| *frames <= BURST), "{bursts:?}");
    let burst = link
        .halves()
        .0
        .receive(BURST, StopAt::Empty, |_| panic!("there is none"));
    assert_eq!(burst.rest, Rest::Drained);

    // A burst has at most the requested number of frames; the others follow in the next burst.
    for nth in 0..3_u8 {
        guest.send(PAIRS[0], &[nth]);
    }
    G::settle(&mut link, 3);
    let burst = link
        .halves()
        .0
        .receive(2, StopAt::Empty, |frames| assert_eq!(frames.len(), 2));
    assert_eq!((burst.frames, burst.rest), (2, Rest::More));
    assert_eq!(drain(&mut link).0, [(to(PAIRS[0]), vec![2])]);
}

/// Waits up to `patience` for an event. Returns true if it reports frames from the guest.
fn reports_frames(epoll: &Epoll, events: &mut Events, patience: Duration) -> bool {
    epoll.wait(events, Some(patience)).unwrap();
    events.edges().any(|(edge, _)| edge == Edge::Link)
}

/// A sleeping worker gets an event for the next frame, and for a frame that arrived just before it slept.
pub(super) fn frame_wakes_a_sleeping_worker<G: Guest>() {
    let (mut link, mut guest) = G::open(1500);
    let epoll = Epoll::new().unwrap();
    link.watch(&epoll).unwrap();
    let mut events = Events::new();
    let mut reports_frames = |patience| reports_frames(&epoll, &mut events, patience);
    for before in [false, true, false] {
        drain(&mut link);
        while reports_frames(Duration::ZERO) {}
        assert!(!link.poll_frames());
        if before {
            guest.send(PAIRS[0], b"before");
        }
        assert_eq!(link.sleep(&epoll, FRAMES), None);
        if !before {
            guest.send(PAIRS[0], b"behind");
        }
        assert!(reports_frames(Duration::from_secs(2)), "before: {before}");
        assert_eq!(drain(&mut link).0.len(), 1);
    }
}

/// A worker whose rate limit permits no frames is not woken by frames. When the limit permits them again, the link
/// reports them, to a sleeping worker by an event and to an awake one by a poll.
pub(super) fn frames_beyond_the_rate_limit_do_not_wake_a_sleeping_worker<G: Guest>() {
    let (mut link, mut guest) = G::open(1500);
    let epoll = Epoll::new().unwrap();
    link.watch(&epoll).unwrap();
    let mut events = Events::new();
    let mut reports_frames = |patience| reports_frames(&epoll, &mut events, patience);
    for sleeps in [true, false, true] {
        drain(&mut link);
        while reports_frames(Duration::ZERO) {}
        for nth in 0..2 {
            guest.send(PAIRS[0], &[nth]);
            G::settle(&mut link, usize::from(nth) + 1);
            // A frame was requested before, so that one event may still report it.
            assert_eq!(link.sleep(&epoll, NO_FRAMES), None);
            reports_frames(Duration::from_millis(20));
            assert_eq!(link.sleep(&epoll, NO_FRAMES), None);
            assert!(!reports_frames(Duration::from_millis(20)), "frame {nth}");
        }
        assert_eq!(drain(&mut link).0.len(), 2);
        assert!(!link.poll_frames());

        if sleeps {
            assert_eq!(link.sleep(&epoll, FRAMES), None);
        }
        guest.send(PAIRS[0], b"later");
        G::settle(&mut link, 1);
        assert!(
            reports_frames(Duration::from_millis(20)) || link.poll_frames(),
            "sleeps: {sleeps}"
        );
        assert_eq!(drain(&mut link).0.len(), 1);
    }
}

pub(super) fn uncommitted_frames_of_a_reservation_are_not_sent<G: Guest>() {
    let (mut link, mut guest) = G::open(1500);
    let mut transmitter = link.transmitter();
    let head = head(PAIRS[0], 50);
    let mut room = transmitter.reserve(3, head.bytes().len(), 100).unwrap();
    let sizes: Vec<usize> = room.payloads().iter().map(|room| room.len()).collect();
    assert_eq!(sizes, [100; 3]);
    for nth in [1_u8, 2] {
        fill(&room, &[nth; 100]);
        room.commit(whole(&head), head.bytes(), 50).unwrap();
    }
    assert_eq!(room.payloads().len(), 1);
    drop(room);
    drop(transmitter);
    flush(&mut link);
    for nth in [1_u8, 2] {
        assert_eq!(guest.receive(PAIRS[0]), Some(vec![nth; 50]));
    }
    assert!(!guest.receives(PAIRS[0]), "the third was not committed");

    // A reservation contains as many frames as fit, but never more than 64.
    let mut transmitter = link.transmitter();
    assert_eq!(transmitter.reserve(1000, 54, 1).unwrap().payloads().len(), 64);
    assert!((1..=64).contains(&transmitter.reserve(64, 54, 65_000).unwrap().payloads().len()));
    assert!(transmitter.reserve(0, 54, 100).is_none());
}

/// A frame that exceeds the link's limits is refused permanently, and changes no state of the link.
pub(super) fn frames_beyond_the_limits_are_refused<G: Guest>() {
    let (mut link, mut guest) = G::open(1500);
    let mut transmitter = link.transmitter();
    let data = [0; 2000];
    let long = head(PAIRS[0], data.len());
    if !transmitter.limits().uso {
        let offload = Offload {
            segmentation: Segmentation::Udp { len: 1000 },
            ..whole(&long)
        };
        assert_eq!(
            transmitter.send(offload, long.bytes(), &data),
            Err(TransmitError::Rejected)
        );
        let mut room = transmitter.reserve(1, long.bytes().len(), data.len()).unwrap();
        assert_eq!(
            room.commit(offload, long.bytes(), data.len()),
            Err(TransmitError::Rejected)
        );
    }
    let mut room = transmitter.reserve(1, long.bytes().len(), 1).unwrap();
    assert_eq!(
        room.commit(whole(&long), long.bytes(), data.len()),
        Err(TransmitError::Rejected),
        "more than its room"
    );
    drop(room);
    let short = head(PAIRS[0], 1);
    let mut room = transmitter.reserve(1, short.bytes().len(), 1).unwrap();
    fill(&room, &[7]);
    room.commit(whole(&short), short.bytes(), 1).unwrap();
    assert_eq!(
        room.commit(whole(&short), short.bytes(), 1),
        Err(TransmitError::Rejected),
        "no room is left in the reservation"
    );
    drop(room);
    drop(transmitter);
    flush(&mut link);
    assert_eq!(link.take_full(), Ok(false));
    assert_eq!(guest.receive(PAIRS[0]), Some(vec![7]));
    assert!(!guest.receives(PAIRS[0]));
}

pub(super) fn disconnected_guest_is_reported<G: Guest>() {
    let (mut link, mut guest) = G::open(1500);
    drain(&mut link);
    guest.send(PAIRS[0], b"final frame");
    guest.leave();
    let mut received = Vec::new();
    let epoll = Epoll::new().unwrap();
    let how = (0..10).find_map(|_| {
        if let Err(how) = link.control(&epoll) {
            return Some(how);
        }
        let burst = link.halves().0.receive(BURST, StopAt::Empty, |frames| {
            received.extend(frames.iter().filter_map(datagram));
        });
        match burst.rest {
            Rest::Disconnected(how) => Some(how),
            Rest::Drained | Rest::More => {
                // The worker makes the same calls.
                link.sleep(&epoll, FRAMES);
                link.take_full().err()
            }
        }
    });
    assert!(
        how.is_some(),
        "the guest is gone, but the link does not report it"
    );
    assert!(received.len() <= 1, "{received:?}");
    let head = head(PAIRS[0], 0);
    let sent = link.transmitter().send(whole(&head), head.bytes(), &[]);
    flush(&mut link);
    assert!(sent.is_err() || link.take_full().is_err());
}

/// Writes the data of the next frame into its reserved memory, which may be several slices.
fn fill(room: &impl Room, mut data: &[u8]) {
    for slice in room.payloads() {
        let (here, later) = data.split_at(slice.len().min(data.len()));
        slice.copy_from(here);
        data = later;
    }
    assert!(data.is_empty(), "{} bytes have no room", data.len());
}

/// Returns the headers of a UDP datagram of `len` bytes from the gateway to the guest.
pub(super) fn head(pair: AddressPair, len: usize) -> emit::Head {
    let ether = emit::Ether {
        source: OURS,
        destination: GUEST,
    };
    emit::udp(ether, ip(pair.gateway, pair.guest), PORTS.1, PORTS.0, len)
}

/// Returns the headers of a UDP datagram of `len` bytes from the guest to the gateway.
pub(super) fn head_up(pair: AddressPair, len: usize) -> emit::Head {
    let ether = emit::Ether {
        source: GUEST,
        destination: OURS,
    };
    emit::udp(ether, ip(pair.guest, pair.gateway), PORTS.0, PORTS.1, len)
}

/// Returns the data of a frame that contains a UDP datagram to the guest. Panics if headers or checksums are invalid.
#[track_caller]
pub(super) fn checked(frame: &[u8], pair: AddressPair) -> Vec<u8> {
    let parsed = parse(&frame[..frame.len().min(HEAD)], frame.len()).unwrap();
    let Body::Ip(ip, Transport::Udp(udp)) = parsed.body else {
        panic!("{parsed:?}")
    };
    let at = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!((ip.source, ip.destination), (at(pair.gateway), at(pair.guest)));
    assert_eq!((udp.source_port, udp.destination_port), (PORTS.1, PORTS.0));
    let data = &frame[udp.payload_offset..][..udp.payload_len];
    let whole = &frame[udp.payload_offset - 8..];
    let sum = Sum::pseudo(ip.source, ip.destination, protocol::UDP, whole.len());
    assert_eq!(sum.add(whole).finish(), 0, "the checksum is complete");
    data.to_vec()
}

/// Returns the fields of an IP header from one address to another.
fn ip(from: &str, to: &str) -> emit::Ip {
    emit::Ip {
        source: from.parse().unwrap(),
        destination: to.parse().unwrap(),
        hop_limit: 64,
        traffic_class: 0,
        dont_fragment: true,
        ident: 0,
    }
}

/// Returns the offload metadata of a frame without segmentation, whose checksum the link or the receiver completes.
pub(super) fn whole(head: &emit::Head) -> Offload {
    Offload {
        checksum: head.checksum,
        segmentation: Segmentation::Whole,
    }
}

/// Returns destination and data of a frame that contains a UDP datagram; `None` for other frames.
pub(super) fn datagram(frame: &Frame<'_>) -> Option<(SocketAddr, Vec<u8>)> {
    let Body::Ip(ip, Transport::Udp(udp)) = parse(frame.head, frame.len).ok()?.body else {
        return None;
    };
    let mut data = vec![0; udp.payload_len];
    assert_eq!(frame.copy(udp.payload_offset, &mut data), data.len());
    Some(((ip.destination, udp.destination_port).into(), data))
}

/// Flushes the transmitter and ends the turn, as a worker does.
pub(super) fn flush(link: &mut impl Link) {
    link.transmitter().flush();
    link.end_turn(false);
}

/// Receives all pending frames. Returns their UDP datagrams and the number of frames in each burst.
pub(super) fn drain(link: &mut impl Link) -> (Vec<(SocketAddr, Vec<u8>)>, Vec<usize>) {
    let (mut datagrams, mut bursts) = (Vec::new(), Vec::new());
    loop {
        let burst = link.halves().0.receive(BURST, StopAt::Empty, |frames| {
            datagrams.extend(frames.iter().filter_map(datagram))
        });
        link.end_turn(burst.rest == Rest::More);
        bursts.push(burst.frames);
        assert_eq!(burst.malformed, 0);
        if burst.rest == Rest::Drained {
            return (datagrams, bursts);
        }
        assert_eq!(burst.rest, Rest::More);
    }
}

/// Returns IP address and UDP port of the gateway.
pub(super) fn to(pair: AddressPair) -> SocketAddr {
    (pair.gateway.parse::<IpAddr>().unwrap(), PORTS.1).into()
}
