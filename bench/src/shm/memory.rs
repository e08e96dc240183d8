//! A measurement with virtqueues in shared memory, without an engine.

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Result;
use pontoon_guest::{Map, Pacing, Process};
use pontoon_ring::Features;
use pontoon_ring::memory::{Raw, Window};
use rustix::event::{EventfdFlags, eventfd};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::GuestTask;
use super::device::RingDevice;
use super::guest::{self, NetInterface, SIZE};
use super::process::{GuestProcess, SideCounts};

const MAP: Map<SIZE> = Map::new(ORIGIN, 1514);
const ORIGIN: u64 = 1 << 20;
const FEATURES: Features = Features {
    event_idx: true,
    indirect: false,
};

/// Runs a measurement and returns the counts of the guest and of the device.
pub(super) fn measure(
    task: GuestTask,
    pacing: Pacing,
    duration: Duration,
) -> Result<(SideCounts, SideCounts)> {
    let shared = SharedMapping::new(MAP.bytes())?;
    let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let (connection, ours) = io::pipe()?;
    let process = Process {
        kicks: [event()?, event()?],
        calls: [event()?, event()?],
        connection: connection.into(),
    };
    let [kicks, calls] =
        [&process.kicks, &process.calls].map(|pair| pair.each_ref().map(|fd| fd.try_clone()));
    let ([kick0, kick1], [call0, call1]) = (kicks, calls);
    let mut device = RingDevice::new(
        shared.window(),
        [MAP.receive(), MAP.transmit()],
        FEATURES,
        [kick0?, kick1?],
        [call0?, call1?],
        pacing,
    )?;
    let mut net = NetInterface::new(shared.window(), MAP, FEATURES, process, pacing)?;
    let guest = GuestProcess::new(|| guest::work(&mut net, task, duration))?;
    let served = device.serve(task, &guest)?;
    drop(ours);
    Ok((guest.counts()?, served))
}

/// A 64-bit counter in memory that two processes share.
pub(super) struct SharedCounter(SharedMapping);

impl SharedCounter {
    pub(super) fn new() -> io::Result<Self> {
        SharedMapping::new(size_of::<AtomicU64>()).map(Self)
    }
}

impl Deref for SharedCounter {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        // SAFETY: the mapping is page-aligned, contains zeros or what was stored, exists as long as `self`, and is
        // accessed only through this reference.
        unsafe { self.0.base.cast().as_ref() }
    }
}

/// Anonymous memory (MAP_SHARED) that two processes share.
struct SharedMapping {
    base: NonNull<u8>,
    len: usize,
}

impl SharedMapping {
    fn new(len: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses an unused address range.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    fn window(&self) -> Window<Raw<'_>> {
        // SAFETY: the mapping exists while `self` is borrowed, and only `Raw`s access it: the pointer is private. Each
        // process has one thread.
        let raw = unsafe { Raw::new(self.base, self.len) };
        Window::new(raw, ORIGIN)
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned by this value, and no borrow of it is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
