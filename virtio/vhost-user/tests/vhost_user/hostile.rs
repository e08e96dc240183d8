//! Tests of protocol violations: a front-end loses its session, and a driver its queue; nothing else is affected.

use std::cell::Cell;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice::from_ref;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use pontoon_engine::link::{Transmit as _, TransmitError};
use pontoon_ring::Layout;
use pontoon_ring::memory::{Area, Memory, VmMemory};
use pontoon_vhost_user::SessionEnd;
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

/// A driver that writes to a ring directly, with invalid values too.
pub(crate) struct Raw<'m> {
    memory: VmMemory<'m, GuestMemoryMmap>,
    layout: Layout,
    /// The next available index.
    next: u16,
}

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

impl<'m> Raw<'m> {
    pub(crate) fn new(memory: &'m GuestMemoryMmap, layout: Layout) -> Self {
        let memory = VmMemory::new(memory);
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

    /// Adds the chain with first descriptor `head` to the available ring.
    pub(crate) fn make_available(&mut self, head: u16) {
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

/// A function that violates the ring protocol.
type Violation = fn(&mut Raw<'_>);

#[test]
fn protocol_violation_fails_only_its_queue() {
    let breaches: [(&str, Violation); 11] = [
        ("more chains than descriptors", |raw| raw.index(257)),
        ("an index that goes back", |raw| raw.index(u16::MAX)),
        ("a head outside the table", |raw| raw.make_available(256)),
        ("a loop", |raw| {
            raw.descriptor(0, raw.layout.descriptors, 16, NEXT, 0);
            raw.make_available(0);
        }),
        ("a chain that leaves the table", |raw| {
            raw.descriptor(0, raw.layout.descriptors, 16, NEXT, 300);
            raw.make_available(0);
        }),
        ("unmapped memory", |raw| {
            raw.descriptor(0, 0, 16, 0, 0);
            raw.make_available(0);
        }),
        ("memory that ends before", |raw| {
            raw.descriptor(0, raw.layout.descriptors, u32::MAX, 0, 0);
            raw.make_available(0);
        }),
        ("memory past the end of the address space", |raw| {
            raw.descriptor(0, u64::MAX - 5, 100, 0, 0);
            raw.make_available(0);
        }),
        ("no bytes", |raw| {
            raw.descriptor(0, raw.layout.descriptors, 0, 0, 0);
            raw.make_available(0);
        }),
        ("an indirect table of incomplete descriptors", |raw| {
            raw.descriptor(0, raw.layout.descriptors, 24, INDIRECT, 0);
            raw.make_available(0);
        }),
        ("a table in a table", |raw| {
            let table = raw.layout.descriptors + 16;
            raw.descriptor(0, table, 16, INDIRECT, 0);
            raw.descriptor(1, table, 16, INDIRECT, 0);
            raw.make_available(0);
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

        let (_machine, mut pairs) = device.connect_machine(&OPTIONS);
        carries(&mut device, &mut pairs[0]);
    }
}

/// A tracing subscriber that counts log lines per thread, and thereby per test.
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
fn repeated_failures_are_logged_a_limited_number_of_times() {
    tracing::subscriber::set_global_default(Lines).unwrap();
    // Other threads may have cached that no subscriber is interested in the log lines.
    tracing::callsite::rebuild_interest_cache();
    let mut device = Device::new(1);
    for faults in 1..=50 {
        let (machine, pairs) = device.connect_machine(&OPTIONS);
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
fn readable_receive_buffer_fails_the_queue() {
    for (flags, len) in [(0, 1536), (WRITE | 8, 1536), (WRITE, 0)] {
        let (mut device, machine, pair) = Device::pair(ALL, 1536);
        let raw = Raw::new(machine.memory(), pair.rx.queue.layout());
        raw.descriptor(0, raw.layout.descriptors, len, flags, 0);
        for _ in 0..3 {
            let sent = device.send(How::Reserved, Offload::NONE, 54, &bytes(60));
            assert_eq!(sent, Err(TransmitError::Full));
        }
        assert_eq!(device.transmitter().faults(), 1);
        assert_eq!(device.receiver().faults(), 0);
    }
}

/// In buffers of one byte each a frame would have too many slices; so it is refused, and a reservation is bounded.
#[test]
fn frames_in_one_byte_buffers_are_refused() {
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
fn truncated_memory_fails_the_queue_not_the_process() {
    let (mut device, mut machine, mut pair) = Device::pair(ALL, 1536);
    for len in [60, 5000] {
        assert!(pair.tx.send(Offload::NONE, 0, &bytes(len)).unwrap());
    }
    pair.tx.flush().unwrap();
    // The file is truncated while frames are in use; a missing page then reads as zeros.
    device.receiver().receive(32, |frames| {
        machine.file().set_len(0).unwrap();
        let mut seen = [1; 5000];
        frames[1].copy(0, &mut seen);
        assert!(seen.iter().all(|byte| *byte == 0));
    });
    for _ in 0..3 {
        let burst = device
            .receiver()
            .receive(32, |_| panic!("its memory was truncated"));
        assert!(!burst.more);
        let sent = device.send(How::Copied, Offload::NONE, 54, &bytes(60));
        assert_eq!(sent, Err(TransmitError::Full));
    }
    assert_eq!(
        (device.receiver().faults(), device.transmitter().faults()),
        (1, 1)
    );
    device.during(|| machine.stop(0).unwrap());

    let (_machine, mut pairs) = device.connect_machine(&OPTIONS);
    carries(&mut device, &mut pairs[0]);
}

/// Returns both ends of a full pipe, to which a blocking write would block.
fn full() -> [OwnedFd; 2] {
    let (read, write) = rustix::pipe::pipe().unwrap();
    ioctl_fionbio(&write, true).unwrap();
    while rustix::io::write(&write, &[0; 4096]).is_ok() {}
    ioctl_fionbio(&write, false).unwrap();
    [read, write]
}

/// A call or error descriptor that is full does not block the ring's thread.
#[test]
fn unread_signals_do_not_block() {
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
                device.serve().unwrap();
            }
        }
        device.send(How::Copied, Offload::NONE, 54, &bytes(60)).unwrap();
        device.transmitter().flush();
        assert_eq!(pairs[0].rx.receive(|_| {}).unwrap(), 1);
        Raw::new(machine.memory(), pairs[0].rx.queue.layout()).index(999);
        for _ in 0..3 {
            let sent = device.send(How::Copied, Offload::NONE, 54, &bytes(60));
            assert_eq!(sent, Err(TransmitError::Full));
        }
        assert_eq!(device.transmitter().faults(), 1);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(10)).unwrap();
}

/// Returns the reason for which a session with this message ends, and checks that another session works afterwards.
fn end(what: &str, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> SessionEnd {
    let mut device = Device::new(1);
    let socket = device.accept();
    assert_eq!(send(&socket, bytes, fds), Ok(bytes.len()));
    let ended = (0..10)
        .find_map(|_| device.serve().err())
        .unwrap_or_else(|| panic!("{what}: the session continues"));
    assert!(!device.backend.is_connected());
    let (_machine, mut pairs) = device.connect_machine(&OPTIONS);
    carries(&mut device, &mut pairs[0]);
    ended
}

#[test]
fn malformed_message_ends_the_session() {
    let file = memory(1 << 16);
    let file = file.as_fd();
    // A descriptor that cannot be signalled or mapped (O_PATH).
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
        ("half a body", message(2, 1, &[0; 4]), vec![]),
        ("a body and a half", message(2, 1, &[0; 12]), vec![]),
        ("unexpected body", message(1, 1, &[0; 8]), vec![]),
        ("unexpected descriptor", message(1, 1, &[]), vec![file]),
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
            "an empty region",
            message(5, 1, &table(1, &[region(0, 0, 0)])),
            vec![file],
        ),
        (
            "a region past its file",
            message(5, 1, &table(1, &[region(0, 1 << 16, 1)])),
            vec![file],
        ),
        (
            "a region past the address space",
            message(5, 1, &table(1, &[region(u64::MAX, 2, 0)])),
            vec![file],
        ),
        (
            "an offset past the largest file",
            message(5, 1, &table(1, &[region(0, 2, u64::MAX)])),
            vec![file],
        ),
        ("an empty log", message(6, 1, &words(&[0, 0])), vec![file]),
        (
            "a log past its file",
            message(6, 1, &words(&[1 << 16, 1])),
            vec![file],
        ),
        (
            "a log past the largest file",
            message(6, 1, &words(&[2, u64::MAX])),
            vec![file],
        ),
        ("a log without a file", message(6, 1, &words(&[1, 0])), vec![]),
        ("ring 2 of one pair", message(8, 1, &halves(2, 256)), vec![]),
        ("ring 2^32 - 1", message(8, 1, &halves(u32::MAX, 256)), vec![]),
        ("a size of 100", message(8, 1, &halves(0, 100)), vec![]),
        ("a size of 0", message(8, 1, &halves(0, 0)), vec![]),
        ("a size of 65536", message(8, 1, &halves(0, 65_536)), vec![]),
        (
            "an unmapped ring",
            message(9, 1, &words(&[0, 0, 0, 0, 0])),
            vec![],
        ),
        ("a base of 65536", message(10, 1, &halves(0, 65_536)), vec![]),
        (
            "a ring without addresses",
            message(12, 1, &words(&[0])),
            vec![file],
        ),
        ("polling mode", message(12, 1, &words(&[0x100])), vec![]),
        ("a missing kick", message(12, 1, &words(&[0])), vec![]),
        ("ring 512", message(12, 1, &words(&[0x200])), vec![file]),
        ("an unusable call", message(13, 1, &words(&[0])), vec![place]),
        ("an unusable err", message(14, 1, &words(&[0])), vec![place]),
        ("enable with 2", message(18, 1, &halves(0, 2)), vec![]),
        ("an MTU of 67", message(20, 1, &words(&[67])), vec![]),
        ("an MTU of 65536", message(20, 1, &words(&[65_536])), vec![]),
    ];
    for (what, bytes, fds) in cases {
        let ended = end(what, &bytes, &fds);
        assert!(!ended.is_orderly(), "{what}: {ended}");
    }
}

#[test]
fn partial_message_is_completed_or_ends_the_session() {
    let mut device = Device::new(1);
    let mut socket = device.accept();
    let whole = message(2, 1, &words(&[1 << 32]));
    for byte in &whole {
        socket.write_all(&[*byte]).unwrap();
        device.serve().unwrap();
    }
    socket.write_all(&whole[..15]).unwrap();
    device.serve().unwrap();
    drop(socket);
    let ended = device.serve().unwrap_err();
    assert!(!ended.is_orderly(), "{ended}");
}

#[test]
fn unread_replies_end_the_session() {
    let mut device = Device::new(1);
    let socket = device.accept();
    socket.set_nonblocking(true).unwrap();
    let requests = message(1, 1, &[]).repeat(64);
    let mut at = 0;
    for _ in 0..10_000 {
        if let Ok(written) = (&socket).write(&requests[at..]) {
            at = (at + written) % requests.len();
        }
        if let Err(ended) = device.serve() {
            assert!(ended.to_string().contains("does not read its replies"), "{ended}");
            return;
        }
    }
    panic!("the session continues although its replies are not read");
}
