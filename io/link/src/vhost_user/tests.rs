use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;

use pontoon_event::Events;
use pontoon_test_support::exhaustion::without_descriptors;
use pontoon_vm_peer::vhost_user::{Machine, Options, QueuePair as Queues};
use pontoon_wire::checksum;
use pontoon_wire::vnet::Segmentation;
use vm_memory::{Bytes as _, GuestAddress};

use super::*;
use crate::BURST;
use crate::conformance::{self, AddressPair, checked, head_up, suite, whole};
use crate::namespace;

suite!(Guest);

mod captured {
    super::suite!(crate::conformance::CapturingGuest<super::Guest>);
}

/// Receive buffers of the guest that hold any frame, because the suite writes each frame into a single slice.
const OPTIONS: Options = Options {
    features: u64::MAX,
    pairs: 1,
    queue_size: 256,
    buffer: 70_000,
};

/// A guest that is a virtio-net driver in this process.
struct Guest {
    connection: UnixStream,
    machine: Machine,
    queues: Queues,
    received: VecDeque<Vec<u8>>,
}

impl Guest {
    /// Connects and negotiates, while the test makes the calls of an awake worker.
    fn connect(link: &mut VhostUser, socket: UnixStream, epoll: &Epoll) -> Self {
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let connection = socket.try_clone().unwrap();
        let (machine, mut queues) = thread::scope(|scope| {
            let guest = scope.spawn(|| Machine::connect(socket, &OPTIONS).unwrap());
            while !guest.is_finished() {
                turn(link, epoll).unwrap();
                thread::yield_now();
            }
            guest.join().unwrap()
        });
        Self {
            connection,
            machine,
            queues: queues.remove(0),
            received: VecDeque::new(),
        }
    }

    /// Receives the frames that have arrived, and completes their checksums as guests do.
    fn listen(&mut self) {
        self.queues
            .rx
            .receive(|frame| {
                assert_eq!(frame.offload.segmentation, Segmentation::Whole);
                let mut bytes = frame.bytes.to_vec();
                checksum::complete(&mut bytes, frame.offload.checksum, []).unwrap();
                self.received.push_back(bytes);
            })
            .unwrap();
    }
}

/// Disconnects at once: a process that another test has just forked may hold a copy of the descriptor.
impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.connection.shutdown(Shutdown::Both);
    }
}

/// Makes the calls of a worker's turn, without the processing of frames.
fn turn(link: &mut VhostUser, epoll: &Epoll) -> Result<(), Disconnected> {
    Receive::receive(&mut link.receiver, BURST, StopAt::Empty, |_| {});
    pontoon_engine::Transmit::flush(&mut link.transmitter);
    link.control(epoll)
}

impl conformance::Guest for Guest {
    type Link = VhostUser;

    fn open(mtu: u16) -> (VhostUser, Self) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut link = open(Source::Connected(ours.into()), 1, mtu).unwrap().remove(0);
        let guest = Self::connect(&mut link, theirs, &Epoll::new().unwrap());
        (link, guest)
    }

    fn send(&mut self, pair: AddressPair, data: &[u8]) {
        let head = head_up(pair, data.len());
        let frame = [head.bytes(), data].concat();
        let tx = &mut self.queues.tx;
        assert!(tx.send(whole(&head), head.bytes().len(), &frame).unwrap());
        tx.flush().unwrap();
    }

    fn receive(&mut self, pair: AddressPair) -> Option<Vec<u8>> {
        if !self.receives(pair) {
            self.queues.rx.queue.wait(Duration::from_secs(2)).unwrap();
            self.listen();
        }
        self.received.pop_front().map(|frame| checked(&frame, pair))
    }

    fn receives(&mut self, _: AddressPair) -> bool {
        self.listen();
        !self.received.is_empty()
    }

    fn leave(self) {}
}

/// Returns a listening socket for guests, and its path.
fn listening(name: &str) -> (Source, PathBuf) {
    let path = std::env::temp_dir().join(format!("pontoon-{name}-{}", std::process::id()));
    let source = Source::Listening {
        listener: UnixListener::bind(&path).unwrap().into(),
        one_off: false,
    };
    (source, path)
}

/// Returns true if an event reports that [`Link::control`] must be called.
fn reports_control(epoll: &Epoll, events: &mut Events) -> bool {
    epoll.wait(events, Some(Duration::ZERO)).unwrap();
    events.edges().any(|(edge, _)| edge == Edge::Control)
}

#[test]
fn guests_are_served_one_after_the_other_and_one_at_a_time() {
    let (source, path) = listening("vhost-user");
    let mut links = open(source, 2, 1500).unwrap();
    let [first, second] = &mut links[..] else {
        panic!("two workers have two links")
    };
    let epolls = [(); 2].map(|()| Epoll::new().unwrap());
    first.watch(&epolls[0]).unwrap();
    second.watch(&epolls[1]).unwrap();
    let mut events = Events::new();
    for _ in 0..2 {
        epolls[1].wait(&mut events, Some(Duration::ZERO)).unwrap();
        let guest = Guest::connect(first, UnixStream::connect(&path).unwrap(), &epolls[0]);
        // Another guest is refused while one is connected.
        let another = UnixStream::connect(&path).unwrap();
        another.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        turn(first, &epolls[0]).unwrap();
        assert_eq!(std::io::Read::read(&mut &another, &mut [0]).unwrap(), 0);
        assert_eq!(second.control(&epolls[1]), Ok(()));

        // Each worker is notified of the disconnection once.
        drop(guest);
        let disconnected = (0..100).find_map(|_| {
            let disconnected = turn(first, &epolls[0]).err();
            if disconnected.is_none() {
                thread::sleep(Duration::from_millis(10));
            }
            disconnected
        });
        assert_eq!(disconnected, Some(Disconnected::Closed));
        assert_eq!(first.detach(&epolls[0]), NextGuest::CanConnect);
        assert_eq!(turn(first, &epolls[0]), Ok(()));
        epolls[1].wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert!(events.edges().any(|(edge, _)| edge == Edge::Control));
        assert_eq!(turn(second, &epolls[1]), Err(Disconnected::Closed));
        assert_eq!(second.detach(&epolls[1]), NextGuest::CanConnect);
        assert_eq!(turn(second, &epolls[1]), Ok(()));
    }
    std::fs::remove_file(path).unwrap();
}

/// A guest that disconnects while a message to one of its queues is not processed yet does not prevent the next one's
/// connection.
#[test]
fn guest_that_connects_while_another_disconnects_is_served_next() {
    let (source, path) = listening("next-guest");
    let mut link = open(source, 1, 1500).unwrap().remove(0);
    let epoll = Epoll::new().unwrap();
    link.watch(&epoll).unwrap();
    let socket = UnixStream::connect(&path).unwrap();
    let mut front_end = socket.try_clone().unwrap();
    let guest = Guest::connect(&mut link, socket, &epoll);
    let mut events = Events::new();
    let mut reports_control = || reports_control(&epoll, &mut events);
    while reports_control() {}

    // The message SET_VRING_ENABLE for ring 0; the test does not wait for the reply.
    let words = [18_u32, 1, 8, 0, 1];
    let message: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    std::io::Write::write_all(&mut front_end, &message).unwrap();
    drop(guest);
    let next = UnixStream::connect(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    assert!(reports_control());
    assert_eq!(link.control(&epoll), Ok(()), "the order has not been obeyed");
    assert_eq!(turn(&mut link, &epoll), Err(Disconnected::Closed));
    while reports_control() {}
    assert_eq!(link.detach(&epoll), NextGuest::CanConnect);
    assert!(reports_control());
    let guest = Guest::connect(&mut link, next, &epoll);
    assert!(link.poll_guest());
    drop(guest);
}

/// Runs in its own process, as it uses up all descriptors.
#[test]
fn guest_is_accepted_after_a_pause_if_no_descriptor_was_free() {
    namespace::run(
        "vhost_user::tests::guest_is_accepted_after_a_pause_if_no_descriptor_was_free",
        || {
            let (source, path) = listening("no-descriptor");
            let mut link = open(source, 1, 1500).unwrap().remove(0);
            let epoll = Epoll::new().unwrap();
            link.watch(&epoll).unwrap();
            let socket = UnixStream::connect(&path).unwrap();
            std::fs::remove_file(path).unwrap();
            let mut events = Events::new();
            let mut reports_control = || reports_control(&epoll, &mut events);
            assert!(reports_control());
            assert_eq!(without_descriptors(|| turn(&mut link, &epoll)), Ok(()));
            assert!(!reports_control(), "the listener is not registered");

            thread::sleep(link.retry_accept(&epoll).unwrap());
            assert_eq!(link.retry_accept(&epoll), None);
            assert!(reports_control());
            let guest = Guest::connect(&mut link, socket, &epoll);
            assert_eq!(link.retry_accept(&epoll), None);
            drop(guest);
        },
    );
}

#[test]
fn queue_faults_are_counted() {
    let (mut link, guest) = <Guest as conformance::Guest>::open(1500);
    let available = guest.queues.tx.queue.layout().available;
    assert_eq!(link.counters().link_queue_faults, 0);
    // The available index exceeds the number of descriptors.
    let index = GuestAddress(available + 2);
    guest
        .machine
        .memory()
        .write_obj(OPTIONS.queue_size + 1, index)
        .unwrap();
    for _ in 0..2 {
        Receive::receive(&mut link.receiver, BURST, StopAt::Empty, |_| panic!("no frame"));
        assert_eq!(link.counters().link_queue_faults, 1);
    }
}

/// No other guest can connect to a link whose guest was connected from the start.
#[test]
fn connected_guest_has_no_successor() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut links = open(Source::Connected(ours.into()), 1, 1500).unwrap();
    theirs.shutdown(Shutdown::Both).unwrap();
    let epoll = Epoll::new().unwrap();
    links[0].watch(&epoll).unwrap();
    assert_eq!(turn(&mut links[0], &epoll), Err(Disconnected::Closed));
    assert_eq!(links[0].detach(&epoll), NextGuest::Never);
}
