//! A hostile guest behind a correct vhost-user front-end: a script decides what the guest writes to its rings and to
//! other memory, and which operations the device does in between.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use pontoon_engine::link::{Room, Transmit as _};
use pontoon_vhost_user::{BURST, Backend, Receiver, Transmitter};
use pontoon_wire::vnet::{Checksum, Offload, Segmentation};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::ftruncate;

use super::messages::{self, halves, memory, message, words};
use crate::script::Script;

/// Runs a script. Panics if the device panics or exceeds its limits.
pub fn run(script: &[u8]) {
    let mut script = Script(script);
    let mut world = HostileGuest::new(&mut script);
    while let Some(step) = script.next_byte() {
        world.step(step, &mut script);
    }
}

/// Size in bytes of each of the two files that are the guest's memory.
const FILE: u64 = 1 << 16;
/// Guest address at which the guest's memory begins.
const BASE: u64 = 1 << 20;
/// User address (VhostUserMemoryRegion) of the guest's memory.
const USER: u64 = 1 << 32;

/// Bytes reserved for each of the two virtqueues, at the start of the guest's memory.
const RING: u64 = 1 << 12;
/// Offset of the available ring behind the start of its virtqueue.
const AVAILABLE: u64 = 1 << 10;
/// Offset of the used ring behind the start of its virtqueue.
const USED: u64 = 1 << 11;

/// Size of the log of dirty pages in bytes, too small for the memory.
const LOG: u64 = 32;

/// The feature VHOST_F_LOG_ALL.
const LOG_ALL: u64 = 1 << 26;

/// The device under test, and the memory of the hostile guest.
struct HostileGuest {
    backend: Backend,
    receiver: Receiver,
    transmitter: Transmitter,
    socket: UnixStream,
    files: [OwnedFd; 2],
    event: OwnedFd,
    log: OwnedFd,
    features: u64,
    size: u16,
    /// Number of times that a ring was started.
    started: u64,
    /// Available indices of both rings, as the driver would write them next.
    next: [u16; 2],
}

impl HostileGuest {
    fn new(script: &mut Script<'_>) -> Self {
        let (mut backend, mut pairs) = Backend::new(1, 1500).unwrap();
        let (receiver, transmitter) = pairs.remove(0);
        let (device_end, socket) = UnixStream::pair().unwrap();
        device_end.set_nonblocking(true).unwrap();
        backend.connect(device_end.into()).unwrap();
        let size = 1 << (script.byte() % 7);
        // VHOST_USER_F_PROTOCOL_FEATURES is not accepted, so rings are enabled when they are started.
        let features =
            0x01c0_0001_3000_998b & !(u64::from(script.byte()) << 28) & !(u64::from(script.byte()) << 8);
        let mut world = Self {
            backend,
            receiver,
            transmitter,
            socket,
            files: [memory(FILE), memory(FILE)],
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
            log: memory(LOG),
            features,
            size,
            started: 0,
            next: [0; 2],
        };
        world.send(2, &words(&[features]), 0);
        world.share();
        for ring in 0..2 {
            world.start(ring);
        }
        world
    }

    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        let ring = script.below(2);
        match step % 12 {
            0 | 1 => {
                let index = script.below(usize::from(self.size) + 1) as u64;
                let at = ring as u64 * RING + 16 * index;
                let descriptor = descriptor(script);
                self.write(at, &descriptor);
            }
            2 => {
                let at = script.below(2 * FILE as usize) as u64;
                let bytes = descriptor(script);
                self.write(at, &bytes);
            }
            3 | 4 => {
                // Adds chains to the available ring, as a driver would.
                for _ in 0..=script.below(4) {
                    let entry = u64::from(self.next[ring] % self.size);
                    let head = script.byte();
                    let at = ring as u64 * RING + AVAILABLE + 4 + 2 * entry;
                    self.write(at, &u16::from(head).to_le_bytes());
                    self.next[ring] = self.next[ring].wrapping_add(1);
                }
                self.show(ring);
            }
            5 => {
                self.next[ring] = self.next[ring].wrapping_add(script.u16());
                self.show(ring);
            }
            6 | 7 => self.receive(script.below(BURST + 2)),
            8 => self.transmit(script),
            9 => self.reserve(script),
            10 if script.byte() > 200 => {
                ftruncate(&self.files[ring], 0).unwrap();
            }
            10 => self.turn(),
            // Sends messages of the front-end about running rings.
            11 if step > 150 => match step / 12 % 4 {
                0 => self.share(),
                1 => self.send(13, &words(&[ring as u64]), 1),
                2 => self.send(14, &words(&[ring as u64]), 1),
                _ => self.log(),
            },
            // Makes the driver create the ring again.
            _ => {
                self.send(11, &halves(ring as u32, 0), 0);
                self.write(ring as u64 * RING + AVAILABLE, &[0; 4]);
                self.write(ring as u64 * RING + USED, &[0; 4]);
                self.next[ring] = 0;
                self.start(ring as u32);
            }
        }
    }

    /// Runs the device's steps of a worker's turn: flushes frames, and polls the rings.
    fn turn(&mut self) {
        self.transmitter.flush();
        if self.transmitter.take_full() {
            self.transmitter.rearm();
        }
        self.transmitter.poll();
        assert!(self.transmitter.limits().max_gso <= 65_535);
        // A ring fails at most once between two starts.
        assert!(self.receiver.faults() + self.transmitter.faults() <= self.started);
    }

    /// Receives at most `max` frames and reads all their bytes.
    fn receive(&mut self, max: usize) {
        let burst = self.receiver.receive(max, |frames| {
            assert!((1..=max.min(BURST)).contains(&frames.len()));
            for frame in frames {
                assert!((1..=65_535 + 18).contains(&frame.len));
                assert!(frame.head.len() <= frame.len);
                let parts: usize = frame.parts.iter().map(|part| part.len()).sum();
                assert_eq!(parts, frame.len);
                let mut bytes = vec![0; frame.len];
                assert_eq!(frame.copy(0, &mut bytes), frame.len);
            }
        });
        assert!(burst.frames + burst.malformed as usize <= max.min(BURST));
        if !self.receiver.poll() {
            self.receiver.rearm();
        }
    }

    fn transmit(&mut self, script: &mut Script<'_>) {
        let (offload, len) = (offload(script), script.below(70_000));
        let _ = self
            .transmitter
            .send(offload, &[1; 54], &vec![2; len.min(65_000)]);
    }

    /// Reserves frames, fills them, and sends some of them.
    fn reserve(&mut self, script: &mut Script<'_>) {
        let (frames, payload) = (script.below(70), script.below(40_000));
        let Some(mut room) = self.transmitter.reserve(frames, 54, payload) else {
            return;
        };
        let offered: usize = room.payloads().iter().map(|slice| slice.len()).sum();
        assert!(offered <= frames.min(64) * payload);
        assert_eq!(offered.checked_rem(payload).unwrap_or(0), 0);
        for slice in room.payloads() {
            slice.copy_from(&vec![3_u8; slice.len()]);
        }
        for _ in 0..script.below(5) {
            let len = payload.saturating_sub(script.below(3) * 700);
            let _ = room.commit(offload(script), &[4; 54], len);
        }
    }

    fn show(&self, ring: usize) {
        let index = self.next[ring].to_le_bytes();
        self.write(ring as u64 * RING + AVAILABLE + 2, &index);
    }

    /// Writes to the guest's memory through its files, within their sizes.
    fn write(&self, at: u64, bytes: &[u8]) {
        let file = &self.files[usize::from(at >= FILE)];
        // A truncated file must not be extended by the write.
        if rustix::fs::fstat(file).unwrap().st_size > 0 {
            let fits = (FILE - at % FILE).min(bytes.len() as u64) as usize;
            rustix::io::pwrite(file, &bytes[..fits], at % FILE).unwrap();
        }
    }

    fn share(&mut self) {
        let region = |nth: u64| words(&[BASE + nth * FILE, FILE, USER + nth * FILE, 0]);
        self.send(5, &[halves(2, 0), region(0), region(1)].concat(), 2);
    }

    /// Starts the log of dirty pages.
    fn log(&mut self) {
        self.features |= LOG_ALL;
        self.send(6, &words(&[LOG, 0]), 1);
        self.send(2, &words(&[self.features]), 0);
        for ring in 0..2 {
            self.locate(ring);
        }
    }

    fn locate(&mut self, ring: u32) {
        let begin = USER + u64::from(ring) * RING;
        let logged = u32::from(self.features & LOG_ALL != 0);
        let used = BASE + u64::from(ring) * RING + USED;
        let places = words(&[begin, begin + USED, begin + AVAILABLE, used]);
        self.send(9, &[halves(ring, logged), places].concat(), 0);
    }

    fn start(&mut self, ring: u32) {
        self.started += 1;
        self.send(8, &halves(ring, self.size.into()), 0);
        self.locate(ring);
        self.send(10, &halves(ring, 0), 0);
        self.send(13, &words(&[ring.into()]), 1);
        self.send(12, &words(&[ring.into()]), 1);
    }

    /// Sends a message of the front-end, and makes the device process it.
    fn send(&mut self, code: u32, body: &[u8], fds: usize) {
        let files = match code {
            5 => [&self.files[0], &self.files[1]],
            6 => [&self.log; 2],
            _ => [&self.event; 2],
        };
        let fds = &files.map(AsFd::as_fd)[..fds];
        let bytes = message(code, 1, body);
        if messages::send(&self.socket, &bytes, fds) != Ok(bytes.len()) {
            return;
        }
        for _ in 0..3 {
            self.receiver.receive(0, |_| {});
            self.transmitter.flush();
            // The call fails if the memory of a ring was truncated.
            let _ = self.backend.handle();
        }
    }
}

/// Returns a descriptor that may be valid.
fn descriptor(script: &mut Script<'_>) -> [u8; 16] {
    let address = match script.byte() % 8 {
        0 => script.u32().into(),
        1 => !u64::from(script.u16()),
        2 => BASE + FILE - u64::from(script.byte()),
        3 => BASE + 2 * FILE - u64::from(script.byte()),
        _ => BASE + u64::from(script.u16()) * 2,
    };
    let len: u32 = match script.byte() % 8 {
        0 => script.u32(),
        1 => 16 * u32::from(script.byte() % 70),
        2 => u32::MAX,
        _ => u32::from(script.u16()) % 4096,
    };
    let flags = u64::from(script.byte() % 16);
    let next = u64::from(script.byte() % 65);
    let rest = u64::from(len) | flags << 32 | next << 48;
    (u128::from(rest) << 64 | u128::from(address)).to_le_bytes()
}

fn offload(script: &mut Script<'_>) -> Offload {
    let checksum = Checksum::Partial {
        start: script.byte().into(),
        offset: script.byte().into(),
    };
    let segmentation = match script.byte() % 4 {
        0 => Segmentation::Tcp4 { mss: 1000 },
        1 => Segmentation::Tcp6 { mss: 1 },
        2 => Segmentation::Udp { len: u16::MAX },
        _ => Segmentation::Whole,
    };
    Offload {
        checksum,
        segmentation,
    }
}
