//! One ring, and what stands around it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pontoon_ring::driver::{self, Driver, Slot};
use pontoon_ring::memory::{Area, Guest, Memory};
use pontoon_ring::{Features, Layout, LayoutError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use vm_memory::{GuestMemoryMmap, VolatileSlice};
use vmm_sys_util::eventfd::EventFd;

use super::Error;

/// A ring.
#[derive(Debug)]
pub struct Queue {
    driver: Driver<Box<[Slot]>>,
    layout: Layout,
    memory: Arc<GuestMemoryMmap>,
    kick: OwnedFd,
    call: OwnedFd,
    kicks: u64,
}

/// A ring at work.
pub(crate) type Open<'q> = driver::Queue<'q, Guest<'q, GuestMemoryMmap>, Box<[Slot]>>;

impl Queue {
    pub(crate) fn new(
        memory: Arc<GuestMemoryMmap>,
        layout: Layout,
        features: Features,
    ) -> Result<Self, Error> {
        let slots = vec![Slot::default(); layout.size.into()].into_boxed_slice();
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from);
        Ok(Self {
            driver: Driver::new(Guest::new(&*memory), layout, features, slots)?,
            layout,
            memory,
            kick: event()?,
            call: event()?,
            kicks: 0,
        })
    }

    /// Where it lies, as guest addresses.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Times that the device was notified.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Notifies the device, whether it wants to know or not.
    pub fn kick(&mut self) {
        self.kicks += 1;
        // It fails when 2^64 - 2 kicks have not been heard.
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// Times that the device has called since this was last asked.
    pub fn take_calls(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.call, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    /// Waits until the device has returned something. Says whether it has.
    ///
    /// # Errors
    /// The device broke the protocol, or the descriptor cannot be waited for.
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
            // It may have called for what was seen without it.
            self.take_calls();
            if self.open()?.poll()? > 0 {
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    pub(crate) fn open(&mut self) -> Result<Open<'_>, LayoutError> {
        self.driver.attach(Guest::new(&*self.memory))
    }

    /// Shows the device what was added, and notifies it if it wants to be.
    pub(crate) fn publish(&mut self) -> Result<(), LayoutError> {
        if self.open()?.publish() {
            self.kick();
        }
        Ok(())
    }

    /// Writes to memory of ours.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.area(address, bytes.len()).copy_in(0, bytes);
    }

    /// Reads from memory of ours.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) {
        self.area(address, into.len()).copy_out(0, into);
    }

    /// Memory of ours.
    pub(crate) fn area(&self, address: u64, len: usize) -> VolatileSlice<'_> {
        Guest::new(&*self.memory)
            .area(address, len)
            .expect("buffers are in memory")
    }

    /// What the device is to be told, for rust-vmm's front-end: kick, then call.
    pub(crate) fn events(&self) -> io::Result<[EventFd; 2]> {
        Ok([lend(&self.kick)?, lend(&self.call)?])
    }
}

impl AsFd for Queue {
    /// Readable when the device has called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }
}

fn lend(event: &OwnedFd) -> io::Result<EventFd> {
    let copy = event.try_clone()?.into_raw_fd();
    // SAFETY: the descriptor is an eventfd that nobody else owns: `into_raw_fd` has given it away.
    Ok(unsafe { EventFd::from_raw_fd(copy) })
}
