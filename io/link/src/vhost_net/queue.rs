//! One queue of a device, as both halves of the link have one: the ring in the device's memory, and its eventfds.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use pontoon_ring::driver::{self, Driver, Slot};
use pontoon_ring::memory::Window;
use pontoon_ring::{Features, Layout, LayoutError, Notification};
use pontoon_sys::vhost::{Device, Vring, Which};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use vm_memory::VolatileSlice;

/// The negotiated features of the ring.
const FEATURES: Features = Features {
    event_idx: true,
    // A frame has one descriptor.
    indirect: false,
};

/// A queue of ours.
pub(super) struct VhostNetQueue {
    device: Arc<Device>,
    driver: Driver<Box<[Slot]>>,
    call: OwnedFd,
    alarm: Arc<Alarm>,
    /// The kernel is to be woken.
    due: bool,
}

/// The ring, found in memory.
pub(super) type AttachedRing<'a> = driver::DriverQueue<'a, Window<VolatileSlice<'a>>, Box<[Slot]>>;

/// The reason for which the link stopped using vhost-net.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// The kernel has reported an error, without a reason.
    #[error("the kernel cannot make sense of a queue")]
    Kernel,
    /// The kernel broke the protocol.
    #[error("{0}")]
    Ring(#[from] driver::VirtqueueError),
    /// A frame's buffers are not all there, or more than it can have.
    #[error("the kernel completed a frame of {0} buffers")]
    Frame(u16),
    /// A buffer could not be added to a ring with free descriptors, or the ring is not mapped any more.
    #[error("cannot add a buffer to the ring")]
    Add,
    /// The kernel could not be woken.
    #[error("cannot wake the kernel: {0}")]
    Wake(Errno),
}

impl From<LayoutError> for Failure {
    fn from(_: LayoutError) -> Self {
        Self::Add
    }
}

impl VhostNetQueue {
    /// Creates a queue of `size` descriptors at offset `at` of the device's memory, and registers it with the kernel.
    pub(super) fn new(
        device: &Arc<Device>,
        which: Which,
        size: u16,
        at: usize,
        kick: &EventFd,
        alarm: &Arc<Alarm>,
    ) -> io::Result<Self> {
        let layout = Layout::contiguous(size, device.memory().address() + at as u64);
        let slots = vec![Slot::default(); size.into()].into_boxed_slice();
        let driver = Driver::new(window(device), layout, FEATURES, slots).map_err(io::Error::other)?;
        let queue = Self {
            device: device.clone(),
            driver,
            call: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            alarm: alarm.clone(),
            due: false,
        };
        let within = Layout::contiguous(size, at as u64);
        let vring = Vring {
            size,
            descriptors: within.descriptors as usize,
            available: within.available as usize,
            used: within.used as usize,
            kick: kick.as_fd(),
            call: queue.call.as_fd(),
            error: alarm.as_fd(),
        };
        device.set_vring(which, vring)?;
        Ok(queue)
    }

    /// The ring, for a burst.
    pub(super) fn ring(&mut self) -> Result<AttachedRing<'_>, Failure> {
        Ok(self.driver.attach(window(&self.device))?)
    }

    /// The address of a place in the device's memory, as descriptors have it.
    pub(super) fn address(&self, at: usize) -> u64 {
        self.device.memory().address() + at as u64
    }

    /// Shows the kernel what was added.
    pub(super) fn publish(&mut self) -> Result<(), Failure> {
        let notification = self.ring()?.publish();
        self.due |= notification == Notification::Required;
        Ok(())
    }

    /// Returns true if the kernel needs a notification for buffers that were published since the last call.
    pub(super) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }

    /// The eventfd with which the kernel reports used buffers. Its count is never read: registered edge triggered, each
    /// write to it is an event.
    pub(super) fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// Returns the value of `outcome`, or raises the alarm if it has failed.
    pub(super) fn checked<T>(&self, outcome: Result<T, Failure>) -> Option<T> {
        outcome.map_err(|failure| self.alarm.raise(failure)).ok()
    }
}

impl fmt::Debug for VhostNetQueue {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("VhostNetQueue")
            .field("free", &self.driver.free())
            .field("outstanding", &self.driver.outstanding())
            .finish_non_exhaustive()
    }
}

fn window(device: &Device) -> Window<VolatileSlice<'_>> {
    let memory = device.memory();
    Window::new(memory.whole(), memory.address())
}

/// An eventfd to write to. One of them wakes the kernel for both queues of a pair, by one system call; the kernel
/// then also checks the queue that has nothing new, which costs little.
#[derive(Debug)]
pub(super) struct EventFd(OwnedFd);

impl EventFd {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(super) fn signal(&self) -> Result<(), Failure> {
        // The count is never read. It has room for the next 500 years.
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).map_err(Failure::Wake)?;
        Ok(())
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An eventfd that is written when vhost-net has failed: by the kernel for an invalid queue, by the link otherwise.
#[derive(Debug)]
pub(super) struct Alarm {
    event: EventFd,
    /// The first failure that the link has detected.
    failure: OnceLock<Failure>,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            event: EventFd::new()?,
            failure: OnceLock::new(),
        })
    }

    pub(super) fn raise(&self, failure: Failure) {
        let _ = self.failure.set(failure);
        // An error cannot be reported to anything else.
        let _ = self.event.signal();
    }

    /// Resets the alarm. Returns its reason if it was raised.
    pub(super) fn take_failure(&self) -> Option<Failure> {
        rustix::io::read(&self.event.0, &mut [0; size_of::<u64>()]).ok()?;
        Some(self.failure.get().copied().unwrap_or(Failure::Kernel))
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
