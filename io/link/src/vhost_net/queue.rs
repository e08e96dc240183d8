//! One virtqueue of a vhost-net device, as each half of the link has one: its ring in the device's memory, and its
//! eventfds.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use pontoon_ring::driver::{self, Driver, Slot};
use pontoon_ring::memory::Window;
use pontoon_ring::{Features, Layout, LayoutError, Notification};
use pontoon_sys::vhost::{VhostDevice, Vring, VringIndex};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use vm_memory::VolatileSlice;

/// Virtio features of the ring that are negotiated with the kernel.
const FEATURES: Features = Features {
    event_idx: true,
    // Each frame has one descriptor, so that no indirect tables are needed.
    indirect: false,
};

/// A virtqueue of a vhost-net device, of which this process is the driver.
pub(super) struct VhostNetQueue {
    device: Arc<VhostDevice>,
    driver: Driver<Box<[Slot]>>,
    call: OwnedFd,
    alarm: Arc<FailureAlarm>,
    /// True if the kernel has requested a notification for published buffers.
    due: bool,
}

/// The ring of a virtqueue, attached to the device's memory for the time of a burst.
pub(super) type AttachedRing<'a> = driver::DriverQueue<'a, Window<VolatileSlice<'a>>, Box<[Slot]>>;

/// Reason for which the link stopped using vhost-net.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum VhostNetFailure {
    /// The kernel has reported an error in a virtqueue; it gives no reason.
    #[error("the kernel has reported an error in a virtqueue")]
    Kernel,
    /// The kernel has violated the virtqueue protocol.
    #[error("{0}")]
    Ring(#[from] driver::VirtqueueError),
    /// A frame from the kernel has fewer buffers than it needs, or more than the longest frame needs.
    #[error("the kernel completed a frame with an invalid number of buffers, {0}")]
    Frame(u16),
    /// A buffer could not be added to a ring with free descriptors, or its address is outside the device's memory.
    #[error("cannot add a buffer to the virtqueue")]
    Add,
    /// The kernel could not be notified (write to the eventfd).
    #[error("cannot notify the kernel: {0}")]
    Wake(Errno),
}

impl From<LayoutError> for VhostNetFailure {
    fn from(_: LayoutError) -> Self {
        Self::Add
    }
}

impl VhostNetQueue {
    /// Creates a queue of `size` descriptors at offset `at` of the device's memory, and registers it with the kernel.
    pub(super) fn new(
        device: &Arc<VhostDevice>,
        which: VringIndex,
        size: u16,
        at: usize,
        kick: &EventFd,
        alarm: &Arc<FailureAlarm>,
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

    /// Returns the ring, attached to the device's memory for a burst.
    pub(super) fn ring(&mut self) -> Result<AttachedRing<'_>, VhostNetFailure> {
        Ok(self.driver.attach(window(&self.device))?)
    }

    /// Returns the address that a descriptor has for offset `at` of the device's memory.
    pub(super) fn address(&self, at: usize) -> u64 {
        self.device.memory().address() + at as u64
    }

    /// Makes the added buffers available to the kernel, and records whether it needs a notification.
    pub(super) fn publish(&mut self) -> Result<(), VhostNetFailure> {
        let notification = self.ring()?.publish();
        self.due |= notification == Notification::Required;
        Ok(())
    }

    /// Returns true if the kernel needs a notification for buffers that were published since the last call.
    pub(super) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }

    /// Returns the eventfd with which the kernel reports used buffers. Its count is never read: as the descriptor is
    /// registered edge triggered, each write is an event.
    pub(super) fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// Returns the value of `outcome`; if it has failed, reports the failure to the link's [`FailureAlarm`] and returns
    /// `None`.
    pub(super) fn checked<T>(&self, outcome: Result<T, VhostNetFailure>) -> Option<T> {
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

fn window(device: &VhostDevice) -> Window<VolatileSlice<'_>> {
    let memory = device.memory();
    Window::new(memory.whole(), memory.address())
}

/// An eventfd that notifies its reader. One of them notifies the kernel of both virtqueues of a device by one system
/// call; the kernel's check of a virtqueue without new buffers costs little.
#[derive(Debug)]
pub(super) struct EventFd(OwnedFd);

impl EventFd {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(super) fn signal(&self) -> Result<(), VhostNetFailure> {
        // The count is never reset; it does not overflow in 500 years.
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).map_err(VhostNetFailure::Wake)?;
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
pub(super) struct FailureAlarm {
    event: EventFd,
    /// First failure that this process has found.
    failure: OnceLock<VhostNetFailure>,
}

impl FailureAlarm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            event: EventFd::new()?,
            failure: OnceLock::new(),
        })
    }

    pub(super) fn raise(&self, failure: VhostNetFailure) {
        let _ = self.failure.set(failure);
        // An error of the write is ignored, because there is no other way to report it.
        let _ = self.event.signal();
    }

    /// Resets the eventfd. Returns the failure if one was reported.
    pub(super) fn take_failure(&self) -> Option<VhostNetFailure> {
        rustix::io::read(&self.event.0, &mut [0; size_of::<u64>()]).ok()?;
        Some(self.failure.get().copied().unwrap_or(VhostNetFailure::Kernel))
    }
}

impl AsFd for FailureAlarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
