//! Tests of a device for a VMM in the same process.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pontoon_engine::Transmit as _;
use pontoon_ring::Layout;
use pontoon_vhost_user::{BURST, InProcessDevice, QueueConfig, Receiver, Transmitter};
use rustix::event::{EventfdFlags, eventfd};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

const BYTES: u64 = 1 << 20;
const VERSION_1: u64 = 1 << 32;

/// Serves the rings and drops frames, until `over` is set.
fn work(mut receiver: Receiver, mut transmitter: Transmitter, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        receiver.receive(BURST, |_| ());
        transmitter.flush();
        thread::yield_now();
    }
}

/// Ends the worker thread when dropped.
struct Ends<'o>(&'o AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls `test` with a device whose rings another thread serves.
fn with_device(test: impl FnOnce(&mut InProcessDevice)) {
    let over = AtomicBool::new(false);
    let (mut device, receiver, transmitter) = InProcessDevice::new(1500).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| work(receiver, transmitter, &over));
        // The value also ends the worker of a failed test, for which the scope would otherwise wait forever.
        let _ends = Ends(&over);
        test(&mut device);
    });
}

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), BYTES as usize)]).unwrap()
}

/// Returns the number of references to the memory, other than the caller's.
fn holders(memory: &GuestMemoryMmap) -> usize {
    let region = memory.iter().next().unwrap();
    Arc::strong_count(&region.get_mmap()) - 1
}

fn queue(layout: Layout) -> QueueConfig {
    let event = || -> OwnedFd { eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap() };
    QueueConfig {
        size: layout.size,
        descriptors: layout.descriptors,
        available: layout.available,
        used: layout.used,
        kick: event(),
        call: event(),
    }
}

fn queues() -> [QueueConfig; 2] {
    [0x1000, 0x8000].map(|base| queue(Layout::contiguous(256, base)))
}

#[test]
fn reset_releases_the_memory() {
    with_device(|device| {
        let memory = memory();
        for _ in 0..3 {
            device.activate(&memory, VERSION_1, queues()).unwrap();
            assert!(holders(&memory) > 1);
            device.reset();
            assert_eq!(holders(&memory), 1);
        }
        device.activate(&memory, VERSION_1, queues()).unwrap();
        device.activate(&memory, VERSION_1, queues()).unwrap();
        device.reset();
        device.reset();
        assert_eq!(holders(&memory), 1);
    });
}

#[test]
fn invalid_queues_are_refused_and_released() {
    with_device(|device| {
        let memory = memory();
        let offered = device.features();
        assert_eq!(offered & VERSION_1, VERSION_1);
        let refused = |device: &mut InProcessDevice, features, change: fn(&mut QueueConfig)| {
            let [receive, mut transmit] = queues();
            change(&mut transmit);
            let refused = device.activate(&memory, features, [receive, transmit]);
            assert_eq!(holders(&memory), 1);
            refused.unwrap_err().to_string()
        };
        for absent in [1 << 63, 1 << 26, 1 << 30] {
            assert_eq!(offered & absent, 0);
            let why = refused(device, VERSION_1 | absent, |_| ());
            assert!(why.contains("were not offered"), "{why}");
        }
        for (change, wanted) in [
            (
                (|queue| queue.size = 100) as fn(&mut QueueConfig),
                "queue 1: invalid queue size 100",
            ),
            (
                |queue| queue.used = BYTES,
                "queue 1: address 0x100000 is not in guest memory",
            ),
            (|queue| queue.descriptors = BYTES - 16, ""),
        ] {
            let why = refused(device, VERSION_1, change);
            assert!(why.contains(wanted), "{why}");
        }
        device.activate(&memory, VERSION_1, queues()).unwrap();
    });
}

#[test]
fn device_can_be_activated_and_reset_without_a_worker() {
    let (mut device, receiver, transmitter) = InProcessDevice::new(1500).unwrap();
    drop((receiver, transmitter));
    device.activate(&memory(), VERSION_1, queues()).unwrap();
    device.reset();
}
