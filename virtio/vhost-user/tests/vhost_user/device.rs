//! A vhost-user device that the thread of the test serves.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use pontoon_engine::Frame;
use pontoon_engine::link::{Room, Transmit as _, TransmitError};
use pontoon_vhost_user::{BURST, Backend, Burst, Receiver, SessionEnd, Transmitter};
use pontoon_vm_peer::vhost_user::{Machine, Options, QueuePair};
use pontoon_wire::vnet::{Checksum, Offload, Segmentation};
use rustix::event::Timespec;
use rustix::event::epoll;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// Feature bits of virtio-net.
pub(crate) const GUEST_CSUM: u64 = 1 << 1;
pub(crate) const GUEST_TSO4: u64 = 1 << 7;
pub(crate) const MRG_RXBUF: u64 = 1 << 15;
pub(crate) const EVENT_IDX: u64 = 1 << 29;
pub(crate) const VERSION_1: u64 = 1 << 32;

/// All features except VHOST_F_LOG_ALL.
pub(crate) const ALL: u64 = !(1 << 26);

pub(crate) const OPTIONS: Options = Options {
    features: ALL,
    pairs: 1,
    queue_size: 256,
    buffer: 1536,
};

/// Offload metadata of a TCP packet that is to be segmented, with a partial checksum.
pub(crate) const TSO: Offload = Offload {
    checksum: Checksum::Partial {
        start: 34,
        offset: 16,
    },
    segmentation: Segmentation::Tcp4 { mss: 1448 },
};

pub(crate) struct Device {
    pub(crate) backend: Backend,
    pub(crate) halves: Vec<(Receiver, Transmitter)>,
}

/// Offload metadata and bytes of a received frame.
pub(crate) type ReceivedFrame = (Offload, Vec<u8>);

impl Device {
    pub(crate) fn new(pairs: usize) -> Self {
        let (backend, halves) = Backend::new(pairs, 1500).unwrap();
        Self { backend, halves }
    }

    /// Returns a device, a machine that is connected to it, and the machine's queue pairs.
    pub(crate) fn with(options: &Options) -> (Self, Machine, Vec<QueuePair>) {
        let mut device = Self::new(options.pairs);
        let (machine, pairs) = device.connect_machine(options);
        (device, machine, pairs)
    }

    /// Returns a device, a machine that is connected to it, and the machine's only queue pair.
    pub(crate) fn pair(features: u64, buffer: u32) -> (Self, Machine, QueuePair) {
        let options = Options {
            features,
            buffer,
            ..OPTIONS
        };
        let (device, machine, mut pairs) = Self::with(&options);
        (device, machine, pairs.remove(0))
    }

    /// Connects another machine to the device.
    pub(crate) fn connect_machine(&mut self, options: &Options) -> (Machine, Vec<QueuePair>) {
        let socket = self.accept();
        self.during(|| Machine::connect(socket, options).unwrap())
    }

    /// Starts a session on one end of a socket pair, and returns the front-end's end.
    pub(crate) fn accept(&mut self) -> UnixStream {
        let (device_end, front_end) = UnixStream::pair().unwrap();
        device_end.set_nonblocking(true).unwrap();
        front_end.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        self.backend.connect(device_end.into()).unwrap();
        front_end
    }

    /// Serves all queues once; received frames are dropped.
    pub(crate) fn serve(&mut self) -> Result<(), SessionEnd> {
        for (receiver, transmitter) in &mut self.halves {
            receiver.receive(BURST, |_| {});
            transmitter.flush();
        }
        self.backend.handle()
    }

    /// Serves the device while `what` runs in another thread; received frames are dropped.
    pub(crate) fn during<T: Send>(&mut self, what: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let other = scope.spawn(what);
            while !other.is_finished() {
                self.serve().unwrap();
                thread::yield_now();
            }
            other.join().unwrap()
        })
    }

    pub(crate) fn receiver(&mut self) -> &mut Receiver {
        &mut self.halves[0].0
    }

    pub(crate) fn transmitter(&mut self) -> &mut Transmitter {
        &mut self.halves[0].1
    }

    /// Receives one burst from the first queue pair.
    pub(crate) fn burst(&mut self) -> (Vec<ReceivedFrame>, Burst) {
        let mut came = Vec::new();
        let burst = self.receiver().receive(BURST, |frames| {
            assert!(!frames.is_empty());
            came.extend(frames.iter().map(copy));
        });
        assert_eq!(burst.frames, came.len());
        (came, burst)
    }

    /// Receives all frames from the first queue pair, and returns them and the number of malformed ones. Then the
    /// device requests kicks.
    pub(crate) fn drain(&mut self) -> (Vec<ReceivedFrame>, u64) {
        let mut came = Vec::new();
        let mut malformed = 0;
        loop {
            let (frames, burst) = self.burst();
            came.extend(frames);
            malformed += burst.malformed;
            if !burst.more {
                assert!(!self.receiver().poll());
                self.receiver().rearm();
                return (came, malformed);
            }
        }
    }

    /// Sends one frame by the method `how`.
    pub(crate) fn send(
        &mut self,
        how: How,
        offload: Offload,
        head: usize,
        frame: &[u8],
    ) -> Result<(), TransmitError> {
        let (head, payload) = frame.split_at(head.min(frame.len()));
        let transmitter = self.transmitter();
        match how {
            How::Copied => transmitter.send(offload, head, payload),
            How::Reserved => {
                let mut room = transmitter
                    .reserve(1, head.len(), payload.len())
                    .ok_or(TransmitError::Full)?;
                fill(&room, payload);
                room.commit(offload, head, payload.len())
            }
        }
    }
}

/// Returns offload metadata and a copy of all bytes of a frame.
pub(crate) fn copy(frame: &Frame<'_>) -> ReceivedFrame {
    let mut bytes = vec![0; frame.len];
    assert_eq!(frame.copy(0, &mut bytes), frame.len);
    assert_eq!(frame.head, &bytes[..frame.head.len()]);
    assert_eq!(frame.head.len(), frame.len.min(pontoon_wire::frame::HEAD));
    (frame.offload, bytes)
}

/// Writes the next payload of a reservation.
pub(crate) fn fill(room: &impl Room, payload: &[u8]) {
    let mut left = payload;
    for slice in room.payloads() {
        let (here, later) = left.split_at(slice.len().min(left.len()));
        slice.copy_from(here);
        left = later;
    }
    assert!(left.is_empty(), "{} bytes have no room", left.len());
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Copied,
    Reserved,
}

/// Returns `len` bytes whose values depend on their position.
pub(crate) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256 + len) as u8).collect()
}

/// An epoll instance with edge-triggered sources, as a worker uses it.
pub(crate) struct Waiter(OwnedFd);

impl Waiter {
    pub(crate) fn new<'a>(sources: impl IntoIterator<Item = &'a dyn AsFd>) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for source in sources {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, source.as_fd(), epoll::EventData::new_u64(0), flags).unwrap();
        }
        Self(epoll)
    }

    /// Waits up to `timeout`, and returns true if there was an event since the last call.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 4];
        let timeout = Timespec::try_from(timeout).unwrap();
        let (events, _) = epoll::wait(&self.0, &mut events, Some(&timeout)).unwrap();
        !events.is_empty()
    }

    pub(crate) fn has(&self) -> bool {
        self.wait(Duration::ZERO)
    }
}
