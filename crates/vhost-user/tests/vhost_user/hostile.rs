//! Front-ends and guests that do what they must not: it costs them their session or their queue, and nobody else
//! anything.

use std::cell::Cell;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice::from_ref;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use pontoon_engine::link::{Refused, Transmit as _};
use pontoon_ring::Layout;
use pontoon_ring::memory::{Area, Guest, Memory};
use pontoon_vhost_user::Ended;
use pontoon_vm_peer::vhost_user::Machine;
use pontoon_wire::vnet::Offload;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::ioctl_fionbio;
use tracing::{Event, Level, Metadata, Subscriber, span};
use vhost::VhostBackend as _;
use vm_memory::GuestMemoryMmap;

use crate::control::carries;
use crate::device::{ALL, Device, How, OPTIONS, bytes};
use pontoon_test_support::vhost_user::messages::{halves, memory, message, send, words};

/// A driver that writes what it likes.
pub(crate) struct Raw<'m> {
    memory: Guest<'m, GuestMemoryMmap>,
    layout: Layout,
    /// The available index.
    next: u16,
}

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

impl<'m> Raw<'m> {
    pub(crate) fn new(memory: &'m GuestMemoryMmap, layout: Layout) -> Self {
        let memory = Guest::new(memory);
        let mut index = [0; 2];
        memory
            .area(layout.available + 2, 2)
            .unwrap()
            .copy_out(0, &mut index);
        Self {
            memory,
            layout,
            next: u16::from_le_bytes(index),
        }
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.area(address, bytes.len()).unwrap().copy_in(0, bytes);
    }

    pub(crate) fn descriptor(&self, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        let at = self.layout.descriptors + 16 * u64::from(index);
        self.write(at, &descriptor(address, len, flags, next));
    }

    /// Shows one more chain.
    pub(crate) fn offer(&mut self, head: u16) {
        let place = u64::from(self.next % self.layout.size);
        self.write(self.layout.available + 4 + 2 * place, &head.to_le_bytes());
        self.index(self.next.wrapping_add(1));
    }

    pub(crate) fn index(&mut self, index: u16) {
        self.next = index;
        self.write(self.layout.available + 2, &index.to_le_bytes());
    }
}

fn descriptor(address: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
    (u128::from(rest) << 64 | u128::from(address)).to_le_bytes()
}

/// Writes what may not be.
type Breach = fn(&mut Raw<'_>);

#[test]
fn a_driver_that_breaks_the_protocol_loses_its_queue_only() {
    let breaches: [(&str, Breach); 11] = [
        ("more chains than descriptors", |raw| raw.index(257)),
        ("an index that goes back", |raw| raw.index(u16::MAX)),
        ("a head outside the table", |raw| raw.offer(256)),
        ("a loop", |raw| {
            raw.descriptor(0, raw.layout.descriptors, 16, NEXT, 0);
            raw.offer(0);
        }),
        ("a chain that leaves the table", |raw| {
            raw.descriptor(0, raw.layout.descriptors, 16, NEXT, 300);
            raw.offer(0);
        }),
        ("memory that is not there", |raw| {
            raw.descriptor(0, 0, 16, 0, 0);
            raw.offer(0);
        }),
        ("memory that ends before", |raw| {
            raw.descriptor(0, raw.layout.descriptors, u32::MAX, 0, 0);
            raw.offer(0);
        }),
        ("memory behind the end of addresses", |raw| {
            raw.descriptor(0, u64::MAX - 5, 100, 0, 0);
            raw.offer(0);
        }),
        ("no bytes", |raw| {
            raw.descriptor(0, raw.layout.descriptors, 0, 0, 0);
            raw.offer(0);
        }),
        ("half an indirect table", |raw| {
            raw.descriptor(0, raw.layout.descriptors, 24, INDIRECT, 0);
            raw.offer(0);
        }),
        ("a table in a table", |raw| {
            let table = raw.layout.descriptors + 16;
            raw.descriptor(0, table, 16, INDIRECT, 0);
            raw.descriptor(1, table, 16, INDIRECT, 0);
            raw.offer(0);
        }),
    ];
    for (what, breach) in breaches {
        let (mut device, machine, mut pair) = Device::pair(ALL, 1536);
        breach(&mut Raw::new(machine.memory(), pair.tx.queue.layout()));
        for _ in 0..3 {
            let burst = device.receiver().receive(32, |_| panic!("{what}"));
            assert_eq!((burst.frames, burst.more), (0, false), "{what}");
        }
        assert_eq!(device.receiver().faults(), 1, "{what}");
        device.send(How::Copied, Offload::NONE, 54, &bytes(60)).unwrap();
        device.transmitter().flush();
        assert_eq!(pair.rx.receive(|_| {}).unwrap(), 1);

        let (_machine, mut pairs) = device.meet(&OPTIONS);
        carries(&mut device, &mut pairs[0]);
    }
}

/// Counts lines of the log that everybody sees, for each thread, and so for each test.
struct Lines;

thread_local! {
    static LINES: Cell<u64> = const { Cell::new(0) };
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pontoon_vhost_user") && *metadata.level() <= Level::WARN
    }

    fn event(&self, _: &Event<'_>) {
        LINES.set(LINES.get() + 1);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn what_is_done_again_and_again_does_not_fill_the_log() {
    tracing::subscriber::set_global_default(Lines).unwrap();
    // Other threads may have found out that nobody listens.
    tracing::callsite::rebuild_interest_cache();
    let mut device = Device::new(1);
    for faults in 1..=50 {
        let (machine, pairs) = device.meet(&OPTIONS);
        Raw::new(machine.memory(), pairs[0].tx.queue.layout()).index(257);
        device.receiver().receive(32, |_| panic!("no frame"));
        assert_eq!(device.receiver().faults(), faults);
        assert_eq!(LINES.get(), faults.min(20));
    }

    LINES.set(0);
    let (mut device, mut machine, _pair) = Device::pair(ALL, 1536);
    device.during(|| {
        for _ in 0..50 {
            machine.frontend().set_vring_base(0, 1).unwrap_err();
        }
    });
    assert_eq!(LINES.get(), 20);
}

#[test]
fn a_receive_buffer_that_cannot_be_one_costs_the_queue() {
    for (flags, len) in [(0, 1536), (WRITE | 8, 1536), (WRITE, 0)] {
        let (mut device, machine, pair) = Device::pair(ALL, 1536);
        let raw = Raw::new(machine.memory(), pair.rx.queue.layout());
        raw.descriptor(0, raw.layout.descriptors, len, flags, 0);
        for _ in 0..3 {
            let sent = device.send(How::Reserved, Offload::NONE, 54, &bytes(60));
            assert_eq!(sent, Err(Refused::Full));
        }
        assert_eq!(device.transmitter().faults(), 1);
        assert_eq!(device.receiver().faults(), 0);
    }
}

/// Buffers of a byte each: a frame does not have so many pieces, and nothing is reserved without end.
#[test]
fn buffers_in_crumbs_are_refused() {
    let (mut device, machine, pair) = Device::pair(ALL, 1536);
    let raw = Raw::new(machine.memory(), pair.rx.queue.layout());
    for index in 0..256 {
        raw.descriptor(index, raw.layout.descriptors, 1, WRITE | NEXT, (index + 1) % 256);
    }
    raw.descriptor(255, raw.layout.descriptors, 1, WRITE, 0);
    let refused = device.send(How::Copied, Offload::NONE, 54, &bytes(1514));
    assert!(refused.is_err(), "{refused:?}");
    device.transmitter().flush();
}

#[test]
fn memory_that_is_cut_off_costs_the_queue_and_not_the_process() {
    let (mut device, mut machine, mut pair) = Device::pair(ALL, 1536);
    for len in [60, 5000] {
        assert!(pair.tx.send(Offload::NONE, 0, &bytes(len)).unwrap());
    }
    pair.tx.flush().unwrap();
    // While frames are at hand: what is gone reads as zeros, for us and for nobody else.
    device.receiver().receive(32, |frames| {
        machine.file().set_len(0).unwrap();
        let mut seen = [1; 5000];
        frames[1].copy(0, &mut seen);
        assert!(seen.iter().all(|byte| *byte == 0));
    });
    for _ in 0..3 {
        let burst = device.receiver().receive(32, |_| panic!("its memory is gone"));
        assert!(!burst.more);
        let sent = device.send(How::Copied, Offload::NONE, 54, &bytes(60));
        assert_eq!(sent, Err(Refused::Full));
    }
    assert_eq!(
        (device.receiver().faults(), device.transmitter().faults()),
        (1, 1)
    );
    device.during(|| machine.stop(0).unwrap());

    let (_machine, mut pairs) = device.meet(&OPTIONS);
    carries(&mut device, &mut pairs[0]);
}

/// A pipe that is full, and would block whoever writes to it.
fn full() -> [OwnedFd; 2] {
    let (read, write) = rustix::pipe::pipe().unwrap();
    ioctl_fionbio(&write, true).unwrap();
    while rustix::io::write(&write, &[0; 4096]).is_ok() {}
    ioctl_fionbio(&write, false).unwrap();
    [read, write]
}

/// Who works on the ring does not wait for whoever it signals.
#[test]
fn a_signal_that_nobody_hears_holds_up_nobody() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let mut device = Device::new(1);
        let socket = device.accept();
        let raw = socket.try_clone().unwrap();
        let (machine, mut pairs) = device.during(|| Machine::connect(socket, &OPTIONS).unwrap());
        let [call, err] = [full(), full()];
        for (code, [_, write]) in [(13, &call), (14, &err)] {
            send(&raw, &message(code, 1, &words(&[0])), &[write.as_fd()]).unwrap();
            for _ in 0..3 {
                device.turn().unwrap();
            }
        }
        device.send(How::Copied, Offload::NONE, 54, &bytes(60)).unwrap();
        device.transmitter().flush();
        assert_eq!(pairs[0].rx.receive(|_| {}).unwrap(), 1);
        Raw::new(machine.memory(), pairs[0].rx.queue.layout()).index(999);
        for _ in 0..3 {
            let sent = device.send(How::Copied, Offload::NONE, 54, &bytes(60));
            assert_eq!(sent, Err(Refused::Full));
        }
        assert_eq!(device.transmitter().faults(), 1);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(10)).unwrap();
}

/// How a session ends that has this message; another one goes well after it.
fn end(what: &str, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Ended {
    let mut device = Device::new(1);
    let socket = device.accept();
    assert_eq!(send(&socket, bytes, fds), Ok(bytes.len()));
    let ended = (0..10)
        .find_map(|_| device.turn().err())
        .unwrap_or_else(|| panic!("{what}: the session goes on"));
    assert!(!device.backend.is_connected());
    let (_machine, mut pairs) = device.meet(&OPTIONS);
    carries(&mut device, &mut pairs[0]);
    ended
}

#[test]
fn a_message_that_is_none_ends_the_session() {
    let file = memory(1 << 16);
    let file = file.as_fd();
    // Nothing can be done with it.
    let place = open("/", OFlags::PATH, Mode::empty()).unwrap();
    let place = place.as_fd();
    let region = |guest: u64, size: u64, offset: u64| words(&[guest, size, guest, offset]);
    let table = |count: u32, regions: &[Vec<u8>]| [halves(count, 0), regions.concat()].concat();
    let good = region(0, 1 << 16, 0);
    let cases: Vec<(&str, Vec<u8>, Vec<BorrowedFd<'_>>)> = vec![
        ("version 0", message(1, 0, &[]), vec![]),
        ("version 2", message(1, 2, &[]), vec![]),
        ("a reply", message(1, 5, &[]), vec![]),
        (
            "too long",
            [1_u32, 1, 4096].map(u32::to_ne_bytes).concat(),
            vec![],
        ),
        ("message 0", message(0, 1, &[]), vec![]),
        ("message 40", message(40, 1, &[]), vec![]),
        ("half a word", message(2, 1, &[0; 4]), vec![]),
        ("a word and a half", message(2, 1, &[0; 12]), vec![]),
        ("bytes where none are", message(1, 1, &[0; 8]), vec![]),
        ("a descriptor where none is", message(1, 1, &[]), vec![file]),
        ("other features", message(2, 1, &words(&[1 << 5])), vec![]),
        (
            "other protocol features",
            message(16, 1, &words(&[1 << 20])),
            vec![],
        ),
        (
            "fewer descriptors",
            message(5, 1, &table(2, &[good.clone(), good.clone()])),
            vec![file],
        ),
        (
            "more descriptors",
            message(5, 1, &table(1, from_ref(&good))),
            vec![file; 2],
        ),
        (
            "many more descriptors",
            message(5, 1, &table(1, from_ref(&good))),
            vec![file; 40],
        ),
        (
            "more regions",
            message(5, 1, &table(33, &vec![good.clone(); 31])),
            vec![file; 31],
        ),
        (
            "fewer regions",
            message(5, 1, &table(2, from_ref(&good))),
            vec![file; 2],
        ),
        (
            "regions that overlap",
            message(5, 1, &table(2, &[good.clone(), region(0xffff, 1, 0)])),
            vec![file; 2],
        ),
        (
            "a region of nothing",
            message(5, 1, &table(1, &[region(0, 0, 0)])),
            vec![file],
        ),
        (
            "a region past its file",
            message(5, 1, &table(1, &[region(0, 1 << 16, 1)])),
            vec![file],
        ),
        (
            "a region past all",
            message(5, 1, &table(1, &[region(u64::MAX, 2, 0)])),
            vec![file],
        ),
        (
            "an offset past all",
            message(5, 1, &table(1, &[region(0, 2, u64::MAX)])),
            vec![file],
        ),
        ("a log of nothing", message(6, 1, &words(&[0, 0])), vec![file]),
        (
            "a log past its file",
            message(6, 1, &words(&[1 << 16, 1])),
            vec![file],
        ),
        (
            "a log past all",
            message(6, 1, &words(&[2, u64::MAX])),
            vec![file],
        ),
        ("a log without a file", message(6, 1, &words(&[1, 0])), vec![]),
        ("ring 2 of one pair", message(8, 1, &halves(2, 256)), vec![]),
        ("ring 2^32 - 1", message(8, 1, &halves(u32::MAX, 256)), vec![]),
        ("a size of 100", message(8, 1, &halves(0, 100)), vec![]),
        ("a size of 0", message(8, 1, &halves(0, 0)), vec![]),
        ("a size of 65536", message(8, 1, &halves(0, 65_536)), vec![]),
        ("a ring nowhere", message(9, 1, &words(&[0, 0, 0, 0, 0])), vec![]),
        ("a base of 65536", message(10, 1, &halves(0, 65_536)), vec![]),
        ("a ring without a place", message(12, 1, &words(&[0])), vec![file]),
        ("a ring to be polled", message(12, 1, &words(&[0x100])), vec![]),
        ("a kick that is not there", message(12, 1, &words(&[0])), vec![]),
        ("ring 512", message(12, 1, &words(&[0x200])), vec![file]),
        ("a call that is none", message(13, 1, &words(&[0])), vec![place]),
        ("an err that is none", message(14, 1, &words(&[0])), vec![place]),
        ("perhaps", message(18, 1, &halves(0, 2)), vec![]),
        ("an MTU of 67", message(20, 1, &words(&[67])), vec![]),
        ("an MTU of 65536", message(20, 1, &words(&[65_536])), vec![]),
    ];
    for (what, bytes, fds) in cases {
        let ended = end(what, &bytes, &fds);
        assert!(!ended.is_orderly(), "{what}: {ended}");
    }
}

#[test]
fn half_a_message_is_waited_for_and_its_end_is_the_end() {
    let mut device = Device::new(1);
    let mut socket = device.accept();
    let whole = message(2, 1, &words(&[1 << 32]));
    for byte in &whole {
        socket.write_all(&[*byte]).unwrap();
        device.turn().unwrap();
    }
    socket.write_all(&whole[..15]).unwrap();
    device.turn().unwrap();
    drop(socket);
    let ended = device.turn().unwrap_err();
    assert!(!ended.is_orderly(), "{ended}");
}

#[test]
fn who_does_not_listen_is_not_answered_for_ever() {
    let mut device = Device::new(1);
    let socket = device.accept();
    socket.set_nonblocking(true).unwrap();
    let questions = message(1, 1, &[]).repeat(64);
    let mut at = 0;
    for _ in 0..10_000 {
        if let Ok(written) = (&socket).write(&questions[at..]) {
            at = (at + written) % questions.len();
        }
        if let Err(ended) = device.turn() {
            assert!(ended.to_string().contains("does not take its answers"), "{ended}");
            return;
        }
    }
    panic!("it is answered and answered");
}
