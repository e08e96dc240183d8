//! The platform of an attached interface: eventfds, and CLOCK_MONOTONIC.

use core::time::Duration;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use vmm_sys_util::eventfd::EventFd;

use crate::{DeviceGone, Platform, Ring};

/// A platform with a kick and a call eventfd for each ring. It can be used also with memory and descriptors that
/// another process has sent.
#[derive(Debug)]
pub struct Process {
    /// Non-blocking eventfds that notify the device: for the receive ring, then for the transmit ring.
    pub kicks: [OwnedFd; 2],
    /// Non-blocking eventfds that the device signals: for the receive ring, then for the transmit ring.
    pub calls: [OwnedFd; 2],
    /// One end of a socket or a pipe. The device has ended when the other end is closed.
    pub connection: OwnedFd,
}

impl Process {
    pub(super) fn new(connection: OwnedFd) -> io::Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            kicks: [event()?, event()?],
            calls: [event()?, event()?],
            connection,
        })
    }

    /// Returns the kick and the call eventfd of each ring.
    pub(super) fn events(&self) -> io::Result<[[EventFd; 2]; 2]> {
        let pair =
            |ring: usize| io::Result::Ok([to_event_fd(&self.kicks[ring])?, to_event_fd(&self.calls[ring])?]);
        Ok([pair(0)?, pair(1)?])
    }
}

impl Platform for Process {
    fn now(&mut self) -> Duration {
        let now = clock_gettime(ClockId::Monotonic);
        Duration::try_from(now).unwrap_or_default()
    }

    fn notify(&mut self, ring: Ring) {
        // The write fails only if the counter is at its maximum of 2^64 - 2.
        let _ = rustix::io::write(&self.kicks[ring as usize], &1_u64.to_ne_bytes());
    }

    fn sleep(&mut self, until: Option<Duration>) -> Result<(), DeviceGone> {
        // A timeout that the kernel cannot represent means no timeout.
        let timeout = until.and_then(|until| Timespec::try_from(until.saturating_sub(self.now())).ok());
        let [receive, transmit] = &self.calls;
        let mut fds = [
            PollFd::new(receive, PollFlags::IN),
            PollFd::new(transmit, PollFlags::IN),
            PollFd::new(&self.connection, PollFlags::empty()),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(_) => return Err(DeviceGone),
        }
        let [receive, transmit, connection] = fds.map(|fd| fd.revents());
        let called = [receive, transmit].map(|events| events.contains(PollFlags::IN));
        for (call, _) in self.calls.iter().zip(called).filter(|(_, called)| *called) {
            // The read resets the counter. The counter can be 0 already only if another process reads the descriptor,
            // too.
            let _ = rustix::io::read(call, &mut [0; 8]);
        }
        if connection.is_empty() || called.contains(&true) {
            Ok(())
        } else {
            Err(DeviceGone)
        }
    }
}

/// Duplicates a descriptor into the type that rust-vmm's front-end requires.
fn to_event_fd(event: &OwnedFd) -> io::Result<EventFd> {
    let copy = event.try_clone()?.into_raw_fd();
    // SAFETY: the descriptor is an eventfd without another owner: `into_raw_fd` released it.
    Ok(unsafe { EventFd::from_raw_fd(copy) })
}
