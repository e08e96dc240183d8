//! One queue of a device, as both halves of the link have one: the ring in the device's memory, and the eventfds.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use pontoon_ring::driver::{self, Driver, Slot};
use pontoon_ring::memory::Window;
use pontoon_ring::{Features, Layout, LayoutError};
use pontoon_sys::vhost::{Device, Vring, Which};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use vm_memory::VolatileSlice;

/// What was negotiated of the ring's features.
const FEATURES: Features = Features {
    event_idx: true,
    // A frame has one descriptor.
    indirect: false,
};

/// A queue of ours.
pub(super) struct Queue {
    device: Arc<Device>,
    driver: Driver<Box<[Slot]>>,
    kick: OwnedFd,
    call: OwnedFd,
    alarm: Arc<Alarm>,
}

/// The ring, found in memory.
pub(super) type Ring<'a> = driver::Queue<'a, Window<VolatileSlice<'a>>, Box<[Slot]>>;

/// Why there is an end to vhost-net.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// The kernel says so, and no more.
    #[error("the kernel cannot make sense of a queue")]
    Kernel,
    /// The kernel broke the protocol.
    #[error("{0}")]
    Ring(#[from] driver::Error),
    /// A frame's buffers are not all there, or more than it can have.
    #[error("a frame of {0} buffers")]
    Frame(u16),
    /// The ring is not in memory any more, or does not take what it has room for.
    #[error("a ring that does not take a buffer")]
    Add,
    /// The kernel could not be woken.
    #[error("cannot wake the kernel: {0}")]
    Kick(Errno),
}

impl From<LayoutError> for Failure {
    fn from(_: LayoutError) -> Self {
        Self::Add
    }
}

impl Queue {
    /// Makes a new queue of `size` descriptors, `at` so many bytes into the device's memory, and tells the kernel.
    pub(super) fn new(
        device: &Arc<Device>,
        which: Which,
        size: u16,
        at: usize,
        alarm: &Arc<Alarm>,
    ) -> io::Result<Self> {
        let layout = Layout::contiguous(size, device.memory().address() + at as u64);
        let slots = vec![Slot::default(); size.into()].into_boxed_slice();
        let driver = Driver::new(window(device), layout, FEATURES, slots).map_err(io::Error::other)?;
        let queue = Self {
            device: device.clone(),
            driver,
            kick: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            call: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            alarm: alarm.clone(),
        };
        let within = Layout::contiguous(size, at as u64);
        let vring = Vring {
            size,
            descriptors: within.descriptors as usize,
            available: within.available as usize,
            used: within.used as usize,
            kick: queue.kick.as_fd(),
            call: queue.call.as_fd(),
            error: alarm.as_fd(),
        };
        device.set_vring(which, vring)?;
        Ok(queue)
    }

    /// The ring, for a burst.
    pub(super) fn ring(&mut self) -> Result<Ring<'_>, Failure> {
        Ok(self.driver.attach(window(&self.device))?)
    }

    /// The address of a place in the device's memory, as descriptors have it.
    pub(super) fn address(&self, at: usize) -> u64 {
        self.device.memory().address() + at as u64
    }

    /// Wakes the kernel.
    pub(super) fn kick(&self) -> Result<(), Failure> {
        match rustix::io::write(&self.kick, &1_u64.to_ne_bytes()) {
            // Full of kicks that the kernel has not seen: it will wake.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(Failure::Kick(error)),
        }
    }

    /// What tells that the kernel has used buffers. Its count is never read: registered edge triggered, each write to it
    /// is an event.
    pub(super) fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// What came of something, unless it failed, which raises the alarm.
    pub(super) fn checked<T>(&self, outcome: Result<T, Failure>) -> Option<T> {
        outcome.map_err(|failure| self.alarm.raise(failure)).ok()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Queue")
            .field("free", &self.driver.free())
            .field("outstanding", &self.driver.outstanding())
            .finish_non_exhaustive()
    }
}

fn window(device: &Device) -> Window<VolatileSlice<'_>> {
    let memory = device.memory();
    Window::new(memory.whole(), memory.address())
}

/// Rings when vhost-net has failed: the kernel rings it for a queue that makes no sense to it, we for the rest.
#[derive(Debug)]
pub(super) struct Alarm {
    bell: OwnedFd,
    /// The first thing that we rang for.
    failure: OnceLock<Failure>,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            failure: OnceLock::new(),
        })
    }

    pub(super) fn raise(&self, failure: Failure) {
        let _ = self.failure.set(failure);
        // An eventfd that refuses has rung often enough.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Whether it has rung, and for what.
    pub(super) fn heard(&self) -> Option<Failure> {
        rustix::io::read(&self.bell, &mut [0; size_of::<u64>()]).ok()?;
        Some(self.failure.get().copied().unwrap_or(Failure::Kernel))
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
