//! A hostile vhost-user front-end: a script decides its messages and its changes of shared memory.

use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use pontoon_engine::link::{Room, Transmit as _};
use pontoon_vhost_user::{BURST, Backend, Receiver, Transmitter};
use pontoon_wire::vnet::Offload;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::ftruncate;

use super::messages::{halves, memory, message, send, words};
use crate::script::Script;

/// Runs a script. Panics if the device panics or does not serve another session afterwards.
pub fn run(script: &[u8]) {
    let mut script = Script(script);
    let mut world = HostileFrontEnd::new();
    while let Some(step) = script.next_byte() {
        world.step(step, &mut script);
    }
}

/// Size of each shared memory file in bytes.
const FILE: u64 = 1 << 16;

/// User address (VhostUserMemoryRegion) of guest address 0.
const USER: u64 = 1 << 32;

/// Values for VHOST_USER_SET_FEATURES: none, all features that are offered with two queue pairs, all except
/// VHOST_F_LOG_ALL, and one that is not offered.
const FEATURES: [u64; 4] = [0, 0x01c0_0001_7440_998b, 0x01c0_0001_7040_998b, 1 << 5];

/// The device under test, and the socket and memory files of the hostile front-end.
struct HostileFrontEnd {
    backend: Backend,
    halves: Vec<(Receiver, Transmitter)>,
    socket: UnixStream,
    files: [OwnedFd; 2],
    event: OwnedFd,
}

impl HostileFrontEnd {
    fn new() -> Self {
        let (mut backend, halves) = Backend::new(2, 1500).unwrap();
        let socket = connect(&mut backend);
        Self {
            backend,
            halves,
            socket,
            files: [memory(FILE), memory(FILE)],
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
        }
    }

    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 16 {
            0..=8 => self.message(script),
            9 => {
                let bytes: Vec<u8> = (0..script.below(40)).map(|_| script.byte()).collect();
                let _ = send(&self.socket, &bytes, &[]);
            }
            10 => {
                let at = u64::from(script.u16());
                let bytes = script.u16().to_le_bytes();
                let _ = rustix::io::pwrite(&self.files[0], &bytes, at);
            }
            // Writes the available index of a ring at the address that `ring_address` returns.
            11 => {
                let ring = script.below(4) as u64;
                let index = u16::from(script.byte()).to_le_bytes();
                let _ = rustix::io::pwrite(&self.files[0], &index, ring * RING + AVAILABLE + 2);
            }
            12 => {
                let len = if script.byte() < 200 { FILE } else { 0 };
                ftruncate(&self.files[script.below(2)], len).unwrap();
            }
            13 => self.read_replies(),
            14 => self.transmit(script),
            _ => {}
        }
        self.turn();
    }

    /// Sends one message, valid or almost valid.
    fn message(&mut self, script: &mut Script<'_>) {
        let code = u32::from(script.byte() % 40);
        let (mut body, count) = body(code, script);
        if script.byte() > 250 {
            body.resize(script.below(1100), 0);
        }
        let count = if script.byte() > 250 {
            script.below(40)
        } else {
            count
        };
        let flags = if script.byte() > 250 {
            script.u32()
        } else {
            1 | u32::from(script.byte() & 8)
        };
        let files = [&self.files[0], &self.files[1]].map(AsFd::as_fd);
        let file = |nth: usize| match code {
            12..=14 => self.event.as_fd(),
            _ => files[nth % 2],
        };
        let fds: Vec<BorrowedFd<'_>> = (0..count).map(file).collect();
        let _ = send(&self.socket, &message(code, flags, &body), &fds);
    }

    /// Reads the device's replies, so that the socket does not fill.
    fn read_replies(&mut self) {
        let mut replies = [0; 4096];
        loop {
            match self.socket.read(&mut replies) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn transmit(&mut self, script: &mut Script<'_>) {
        let pair = script.below(2);
        let len = script.below(3000);
        let transmitter = &mut self.halves[pair].1;
        let _ = transmitter.send(Offload::NONE, &[1; 54], &vec![2; len]);
        if let Some(mut room) = transmitter.reserve(script.below(9), 54, len) {
            let _ = room.commit(Offload::NONE, &[3; 54], len / 2);
        }
        transmitter.flush();
    }

    fn turn(&mut self) {
        for (receiver, transmitter) in &mut self.halves {
            receiver.receive(BURST, |frames| {
                for frame in frames {
                    let mut bytes = vec![0; frame.len];
                    assert_eq!(frame.copy(0, &mut bytes), frame.len);
                }
            });
            receiver.rearm();
            transmitter.flush();
        }
        if self.backend.handle().is_err() {
            assert!(!self.backend.is_connected());
            self.socket = connect(&mut self.backend);
        }
    }
}

fn connect(backend: &mut Backend) -> UnixStream {
    let (device_end, front_end) = UnixStream::pair().unwrap();
    device_end.set_nonblocking(true).unwrap();
    front_end.set_nonblocking(true).unwrap();
    backend.connect(device_end.into()).unwrap();
    front_end
}

/// Returns the body of a message with this request code, and the number of descriptors to send with it.
fn body(code: u32, script: &mut Script<'_>) -> (Vec<u8>, usize) {
    let ring = |script: &mut Script<'_>| u32::from(script.byte() % 5);
    match code {
        2 => (words(&[FEATURES[script.below(4)]]), 0),
        5 => {
            let count = script.below(4);
            let regions: Vec<u8> = (0..count).flat_map(|_| region(script)).collect();
            ([halves(count as u32, 0), regions].concat(), count)
        }
        6 => (words(&[word(script), word(script)]), 1),
        7 => (Vec::new(), 1),
        8 => (halves(ring(script), 1 << (script.byte() % 9)), 0),
        9 => (ring_address(ring(script), script), 0),
        10 | 11 => (halves(ring(script), u32::from(script.byte())), 0),
        12..=14 => {
            let polled = u64::from(script.byte() > 240) << 8;
            (
                words(&[u64::from(ring(script)) | polled]),
                usize::from(polled == 0),
            )
        }
        16 => (words(&[u64::from(script.u16())]), 0),
        18 => (halves(ring(script), u32::from(script.byte() % 3)), 0),
        20 => (words(&[word(script)]), 0),
        37 | 38 => ([words(&[0]), region(script)].concat(), usize::from(code == 37)),
        _ => (Vec::new(), 0),
    }
}

/// Returns a memory region description, most of the time a valid one.
fn region(script: &mut Script<'_>) -> Vec<u8> {
    let guest = u64::from(script.byte() % 4) * FILE;
    let mut region = [guest, FILE, USER + guest, 0];
    if script.byte() > 200 {
        region[script.below(4)] = word(script);
    }
    words(&region)
}

/// Bytes reserved for each virtqueue, at the start of the guest's memory.
const RING: u64 = 1 << 13;
/// Offset of the available ring behind the start of its virtqueue.
const AVAILABLE: u64 = 1 << 12;
/// Offset of the used ring behind the start of its virtqueue.
const USED: u64 = AVAILABLE + (1 << 10);

fn ring_address(ring: u32, script: &mut Script<'_>) -> Vec<u8> {
    let begin = USER + u64::from(ring) * RING;
    let mut address = [
        begin,
        begin + USED,
        begin + AVAILABLE,
        u64::from(ring) * RING + USED,
    ];
    if script.byte() > 220 {
        address[script.below(4)] = word(script);
    }
    [halves(ring, u32::from(script.byte() & 1)), words(&address)].concat()
}

/// Returns a number, most of the time one that affects the device: a user address, a size or a power of two.
fn word(script: &mut Script<'_>) -> u64 {
    match script.byte() % 8 {
        0 => script.byte().into(),
        1 => USER + u64::from(script.u16()),
        2 => script.u16().into(),
        3 => 1 << (script.byte() % 64),
        4 => !u64::from(script.byte()),
        5 => FILE,
        6 => u64::from(script.u32()) << 32 | u64::from(script.u32()),
        _ => 0,
    }
}
