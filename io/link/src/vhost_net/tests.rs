use std::net::UdpSocket;
use std::time::Instant;

use pontoon_event::Events;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use super::*;
use crate::BURST;
use crate::conformance::{
    self, AddressPair, FRAMES, FRAMES_AND_ROOM, NO_FRAMES, PAIRS, datagram, drain, flush, head, suite, to,
    whole,
};
use crate::namespace::{self, ip};
use crate::tap::tests::{all, guest, socket};

suite!(Namespace);

/// The network stack of the test's namespace as guest behind a tap and vhost-net.
struct Namespace([UdpSocket; 2]);

impl conformance::Guest for Namespace {
    type Link = VhostNet;

    fn run(name: &str, test: fn()) {
        run(name, test);
    }

    fn open(mtu: u16) -> (VhostNet, Self) {
        (link(mtu), Self(PAIRS.map(socket)))
    }

    fn settle(link: &mut VhostNet, frames: usize) {
        let receiver = link.receiver.ring.as_mut().unwrap();
        until("the kernel brings frames", || {
            usize::from(receiver.waiting().unwrap()) >= frames
        });
    }

    fn send(&mut self, pair: AddressPair, data: &[u8]) {
        self.socket(pair).send(data).unwrap();
    }

    fn receive(&mut self, pair: AddressPair) -> Option<Vec<u8>> {
        received(self.socket(pair))
    }

    fn receives(&mut self, pair: AddressPair) -> bool {
        let socket = self.socket(pair);
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let has_data = received(socket).is_some();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        has_data
    }

    fn leave(self) {
        ip("link del tap0");
    }
}

impl Namespace {
    fn socket(&self, pair: AddressPair) -> &UdpSocket {
        &self.0[usize::from(pair.guest.contains(':'))]
    }
}

/// Number of times that the ring is filled, and number of datagrams each time.
const ROUNDS: u32 = 100;
const DATAGRAMS: u32 = 1000;

#[test]
fn full_ring_to_the_guest_neither_loses_nor_duplicates_frames() {
    run(
        "vhost_net::tests::full_ring_to_the_guest_neither_loses_nor_duplicates_frames",
        || {
            let (mut link, epoll) = watched();
            let socket = socket(PAIRS[0]);
            set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
            let mut refused = 0;
            for round in 0..ROUNDS {
                let numbers = round * DATAGRAMS..(round + 1) * DATAGRAMS;
                for number in numbers.clone() {
                    let head = head(PAIRS[0], 4);
                    while let Err(why) =
                        link.transmitter()
                            .send(whole(&head), head.bytes(), &number.to_be_bytes())
                    {
                        assert_eq!(why, TransmitError::Full);
                        refused += 1;
                        until_room(&mut link, &epoll);
                    }
                }
                flush(&mut link);
                for number in numbers {
                    assert_eq!(received(&socket), Some(number.to_be_bytes().to_vec()));
                }
                socket.set_nonblocking(true).unwrap();
                assert_eq!(received(&socket), None, "a datagram too many");
                socket.set_nonblocking(false).unwrap();
            }
            assert!(refused >= ROUNDS, "{refused} refused: the ring was not full");
        },
    );
}

#[test]
fn full_ring_from_the_guest_neither_loses_nor_duplicates_frames() {
    run(
        "vhost_net::tests::full_ring_from_the_guest_neither_loses_nor_duplicates_frames",
        || {
            let (mut link, epoll) = watched();
            let socket = socket(PAIRS[0]);
            for round in 0..ROUNDS {
                let numbers = round * DATAGRAMS..(round + 1) * DATAGRAMS;
                for number in numbers.clone() {
                    socket.send(&number.to_be_bytes()).unwrap();
                }
                let mut received = Vec::new();
                while received.len() < numbers.len() {
                    let (receiver, _) = link.halves();
                    let burst = receiver.receive(BURST, StopAt::Empty, |frames| {
                        let data = frames.iter().filter_map(datagram).map(|(_, data)| data);
                        received.extend(data.map(|data| u32::from_be_bytes(data.try_into().unwrap())));
                    });
                    if burst.rest == Rest::Drained && received.len() < numbers.len() {
                        let timeout = link.sleep(&epoll, FRAMES);
                        wait_for(&epoll, timeout, Edge::Link);
                    }
                }
                assert_eq!(received, numbers.collect::<Vec<_>>());
            }
        },
    );
}

#[test]
fn link_continues_on_the_tap_when_the_kernel_reports_an_error() {
    run(
        "vhost_net::tests::link_continues_on_the_tap_when_the_kernel_reports_an_error",
        || {
            let (mut link, epoll) = watched();
            link.transmitter.ring.as_mut().unwrap().offer_nonsense();
            link.end_turn(false);
            let mut events = Events::new();
            until("the kernel rings", || {
                epoll.wait(&mut events, Some(Duration::from_millis(10))).unwrap();
                if events.edges().any(|(edge, _)| edge == Edge::Control) {
                    link.control(&epoll).unwrap();
                }
                link.counters().link_withdrawals == 1
            });
            assert_eq!(link.take_full(), Ok(true), "no event for room");

            for pair in PAIRS {
                let socket = socket(pair);
                socket.send(b"up").unwrap();
                assert_eq!(drain(&mut link).0, [(to(pair), b"up".to_vec())]);
                let head = head(pair, 4);
                link.transmitter()
                    .send(whole(&head), head.bytes(), b"down")
                    .unwrap();
                flush(&mut link);
                assert_eq!(received(&socket).as_deref(), Some(&b"down"[..]));
            }
            assert_eq!(link.counters().link_withdrawals, 1);
        },
    );
}

#[test]
fn frames_beyond_the_rate_limit_do_not_wake_a_sleeping_worker_on_the_tap() {
    namespace::run(
        "vhost_net::tests::frames_beyond_the_rate_limit_do_not_wake_a_sleeping_worker_on_the_tap",
        || {
            let (mut link, epoll) = (withdrawn(), Epoll::new().unwrap());
            link.withdraw(&epoll).unwrap();
            let mut events = Events::new();
            let mut reports_frames = || {
                epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
                events.edges().any(|(edge, _)| edge == Edge::Link)
            };
            drain(&mut link);
            let socket = socket(PAIRS[0]);
            socket.send(b"up").unwrap();
            assert!(reports_frames());
            assert_eq!(link.sleep(&epoll, NO_FRAMES), None);
            assert!(!reports_frames());
            assert!(link.poll_frames(), "who does not sleep finds them");
            assert_eq!(link.sleep(&epoll, FRAMES), None);
            assert!(reports_frames());
            assert_eq!(drain(&mut link).0, [(to(PAIRS[0]), b"up".to_vec())]);
        },
    );
}

/// Tests that a worker that never sleeps notices the deletion of the interface, of which vhost-net sends no event.
#[test]
fn deleted_interface_is_noticed_by_polling() {
    namespace::run(
        "vhost_net::tests::deleted_interface_is_noticed_by_polling",
        || {
            let mut link = withdrawn();
            drain(&mut link);
            let polled = |link: &mut VhostNet| {
                for _ in 0..EMPTY_POLLS {
                    link.poll_frames();
                }
                link.take_full()
            };
            assert!(polled(&mut link).is_ok());
            ip("link del tap0");
            let gone = Disconnected::Interface(Errno::BADFD);
            assert_eq!(polled(&mut link), Err(gone));
        },
    );
}

/// Returns a link without vhost-net, which uses the tap as after a failure. Every kernel has a tap.
fn withdrawn() -> VhostNet {
    let (tap_receiver, tap_transmitter) = guest(all(), 1500).0.into_halves();
    VhostNet {
        receiver: VhostNetReceiver {
            ring: None,
            tap: tap_receiver,
        },
        transmitter: VhostNetTransmitter {
            ring: None,
            tap: tap_transmitter,
        },
        kick: EventFd::new().unwrap(),
        alarm: None,
        rx_interest: RxInterest::default(),
        gathered: None,
        silence: 0,
        empty_polls: 0,
        disconnected: None,
        room: false,
        withdrawals: 0,
    }
}

/// Runs the test `test` with the full name `name` if `/dev/vhost-net` can be opened, or prints that it is skipped.
fn run(name: &str, test: fn()) {
    match vhost::check() {
        Ok(_) => namespace::run(name, test),
        Err(error) => namespace::skipped(name, &format!("cannot open {}: {error}", vhost::PATH)),
    }
}

fn link(mtu: u16) -> VhostNet {
    let (tap, _) = guest(all(), mtu);
    let pair = super::VhostPair::start(&tap).unwrap();
    VhostNet::new(tap, pair)
}

/// Returns a link that is registered with an epoll instance and whose first events were discarded.
fn watched() -> (VhostNet, Epoll) {
    let mut link = link(1500);
    let epoll = Epoll::new().unwrap();
    link.watch(&epoll).unwrap();
    drain(&mut link);
    epoll
        .wait(&mut Events::new(), Some(Duration::from_millis(100)))
        .unwrap();
    (link, epoll)
}

/// Waits for room with the calls of the worker.
fn until_room(link: &mut VhostNet, epoll: &Epoll) {
    link.transmitter().flush();
    assert_eq!(link.take_full(), Ok(true));
    let timeout = link.sleep(epoll, FRAMES_AND_ROOM);
    wait_for(epoll, timeout, Edge::Room);
}

/// Waits for an event of `edge` until `timeout`, the longest time for which the link may sleep; without a timeout the
/// event has to arrive.
fn wait_for(epoll: &Epoll, timeout: Option<Duration>, edge: Edge) {
    let mut events = Events::new();
    if let Some(timeout) = timeout {
        return epoll.wait(&mut events, Some(timeout)).unwrap();
    }
    until("the kernel calls", || {
        epoll.wait(&mut events, Some(Duration::from_secs(5))).unwrap();
        events.edges().any(|(happened, _)| happened == edge)
    });
}

fn received(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut data = vec![0; 65_536];
    let len = socket.recv(&mut data).ok()?;
    data.truncate(len);
    Some(data)
}

#[track_caller]
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within 5 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}
