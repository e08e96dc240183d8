//! The driver's side of one virtqueue, with its kick and call eventfds.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pontoon_ring::driver::{self, Driver, Slot};
use pontoon_ring::memory::{Area, Memory, VmMemory};
use pontoon_ring::{Features, Layout, LayoutError, Notification};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use vm_memory::{GuestMemoryMmap, VolatileSlice};
use vmm_sys_util::eventfd::EventFd;

use super::Error;

/// The driver's side of one virtqueue.
#[derive(Debug)]
pub struct Queue {
    driver: Driver<Box<[Slot]>>,
    layout: Layout,
    memory: Arc<GuestMemoryMmap>,
    kick: OwnedFd,
    call: OwnedFd,
    kicks: u64,
}

/// A virtqueue whose rings were looked up in the guest's memory.
pub(crate) type MappedQueue<'q> = driver::DriverQueue<'q, VmMemory<'q, GuestMemoryMmap>, Box<[Slot]>>;

impl Queue {
    pub(crate) fn new(
        memory: Arc<GuestMemoryMmap>,
        layout: Layout,
        features: Features,
    ) -> Result<Self, Error> {
        let slots = vec![Slot::default(); layout.size.into()].into_boxed_slice();
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from);
        Ok(Self {
            driver: Driver::new(VmMemory::new(&*memory), layout, features, slots)?,
            layout,
            memory,
            kick: event()?,
            call: event()?,
            kicks: 0,
        })
    }

    /// Returns the guest addresses of the virtqueue's parts.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the number of kicks (notifications of the device).
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Kicks the device, even if it has disabled notifications.
    pub fn kick(&mut self) {
        self.kicks += 1;
        // The write fails only if the counter of the eventfd is at its maximum of 2^64 - 2.
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// Returns the number of calls (notifications by the device) since the last time, and resets it.
    pub fn take_calls(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.call, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    /// Waits until the device has returned chains through the used ring. Returns false after `timeout`.
    ///
    /// # Errors
    /// The device violated the protocol, or the descriptor cannot be polled.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        let begin = Instant::now();
        loop {
            if self.open()?.rearm()? > 0 {
                return Ok(true);
            }
            let left = timeout.saturating_sub(begin.elapsed());
            let patience = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut fds = [PollFd::new(&self.call, PollFlags::IN)];
            match poll(&mut fds, Some(&patience)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
            // The call may announce chains that were taken before.
            self.take_calls();
            if self.open()?.poll()? > 0 {
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    pub(crate) fn open(&mut self) -> Result<MappedQueue<'_>, LayoutError> {
        self.driver.attach(VmMemory::new(&*self.memory))
    }

    /// Publishes the added chains in the available ring, and kicks the device if it has enabled notifications.
    pub(crate) fn publish(&mut self) -> Result<(), LayoutError> {
        let notification = self.open()?.publish();
        if notification == Notification::Required {
            self.kick();
        }
        Ok(())
    }

    /// Writes bytes to the guest's memory.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.area(address, bytes.len()).copy_in(0, bytes);
    }

    /// Reads bytes from the guest's memory.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) {
        self.area(address, into.len()).copy_out(0, into);
    }

    /// Returns a slice of the guest's memory.
    pub(crate) fn area(&self, address: u64, len: usize) -> VolatileSlice<'_> {
        VmMemory::new(&*self.memory)
            .area(address, len)
            .expect("buffers are in memory")
    }

    /// Returns copies of the kick and the call descriptor.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn descriptors(&self) -> io::Result<[OwnedFd; 2]> {
        Ok([self.kick.try_clone()?, self.call.try_clone()?])
    }

    /// Returns the kick and the call descriptor for rust-vmm's front-end.
    pub(crate) fn events(&self) -> io::Result<[EventFd; 2]> {
        Ok(self.descriptors()?.map(to_event_fd))
    }
}

impl AsFd for Queue {
    /// Returns the call eventfd, which is readable after a notification by the device.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }
}

fn to_event_fd(event: OwnedFd) -> EventFd {
    // SAFETY: the descriptor is an eventfd without another owner: `into_raw_fd` released it.
    unsafe { EventFd::from_raw_fd(event.into_raw_fd()) }
}
