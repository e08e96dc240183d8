//! The control side of a ring: its configuration by the front-end, and the commands to the thread that serves it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use pontoon_ring::Layout;
use rustix::io::Errno;

use crate::data_plane::RingConfig;
use crate::features::Features;
use crate::log::{DirtyLog, RingLog};
use crate::mailbox::{Mailbox, RingCommand, RingResponse};
use crate::memory::MemoryTable;
use crate::message::RingAddress;

/// Configuration of one ring, as the front-end has set it so far.
#[derive(Debug)]
pub(crate) struct ControlRing {
    mailbox: Arc<Mailbox>,
    /// True if the ring was started and not stopped.
    running: bool,
    size: u16,
    address: Option<RingAddresses>,
    base: u16,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
    enabled: bool,
}

/// Addresses of a ring's three parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingAddresses {
    /// Guest-physical addresses of the parts.
    descriptors: u64,
    available: u64,
    used: u64,
    /// Guest-physical address of the used ring in the dirty log; `None` if writes to the used ring are not logged.
    log: Option<u64>,
}

/// Reason why the configuration of a ring is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RingError {
    #[error("invalid queue size {0}")]
    Size(u32),
    #[error("invalid base {0}")]
    Base(u32),
    #[error("address {0:#x} is not in guest memory")]
    Address(u64),
    #[error("a running ring cannot be changed")]
    Running,
    #[error("the ring was started without addresses")]
    NoAddress,
    #[error("polling mode is not supported")]
    Polled,
    #[error("cannot make a descriptor non-blocking: {0}")]
    Blocking(Errno),
}

impl ControlRing {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self {
            mailbox,
            running: false,
            size: 0,
            address: None,
            base: 0,
            call: None,
            err: None,
            enabled: false,
        }
    }

    /// Returns true if the last command has no response yet.
    pub(crate) fn is_busy(&self) -> bool {
        self.mailbox.is_busy()
    }

    /// Removes and returns the response to the last command.
    pub(crate) fn take_response(&mut self) -> Option<RingResponse> {
        let response = self.mailbox.take_response()?;
        match response {
            RingResponse::Stopped(Some(base)) => self.base = base,
            RingResponse::Failed(_) => self.running = false,
            RingResponse::Stopped(None) | RingResponse::Done => {}
        }
        Some(response)
    }

    /// Returns the number of available entries that were taken until the ring was stopped.
    pub(crate) fn base(&self) -> u16 {
        self.base
    }

    pub(crate) fn set_size(&mut self, size: u32) -> Result<(), RingError> {
        self.check_stopped()?;
        self.size = u16::try_from(size)
            .ok()
            .filter(|size| size.is_power_of_two() && *size <= 1 << 15)
            .ok_or(RingError::Size(size))?;
        Ok(())
    }

    /// Sets the addresses. Those of a running ring must not change, except the address in the log.
    pub(crate) fn set_address(
        &mut self,
        address: RingAddress,
        memory: &MemoryTable,
    ) -> Result<(), RingError> {
        let find = |user| memory.guest_address(user).ok_or(RingError::Address(user));
        let found = RingAddresses {
            descriptors: find(address.descriptors)?,
            available: find(address.available)?,
            used: find(address.used)?,
            log: (address.flags & LOGGED != 0).then_some(address.log),
        };
        let moved = self.address.is_none_or(|old| {
            RingAddresses {
                log: found.log,
                ..old
            } != found
        });
        if moved {
            self.check_stopped()?;
        }
        self.address = Some(found);
        Ok(())
    }

    pub(crate) fn set_base(&mut self, base: u32) -> Result<(), RingError> {
        self.check_stopped()?;
        self.base = u16::try_from(base).map_err(|_| RingError::Base(base))?;
        Ok(())
    }

    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>) -> Result<(), RingError> {
        set_nonblocking(call.as_ref())?;
        if self.running {
            self.mailbox.post(RingCommand::Call(call));
        } else {
            self.call = call;
        }
        Ok(())
    }

    pub(crate) fn set_err(&mut self, err: Option<OwnedFd>) -> Result<(), RingError> {
        set_nonblocking(err.as_ref())?;
        if self.running {
            self.mailbox.post(RingCommand::Err(err));
        } else {
            self.err = err;
        }
        Ok(())
    }

    pub(crate) fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
        self.post_if_running(|| RingCommand::Enable(enabled));
    }

    /// Enables a ring that is not running if `enabled`: without protocol features, rings start in the enabled state.
    pub(crate) fn enable_by_default(&mut self, enabled: bool) {
        if !self.running {
            self.enabled |= enabled;
        }
    }

    pub(crate) fn set_memory(&mut self, memory: &Arc<MemoryTable>) {
        self.post_if_running(|| RingCommand::Memory(memory.clone()));
    }

    pub(crate) fn set_log(&mut self, features: Features, log: Option<&Arc<DirtyLog>>) {
        let log = self.log(features, log);
        self.post_if_running(|| RingCommand::Log(log));
    }

    /// Starts the ring with the configuration and `kick`.
    pub(crate) fn start(
        &mut self,
        kick: Option<OwnedFd>,
        memory: &Arc<MemoryTable>,
        features: Features,
        log: Option<&Arc<DirtyLog>>,
        mtu: usize,
    ) -> Result<(), RingError> {
        self.check_stopped()?;
        let kick = kick.ok_or(RingError::Polled)?;
        let Some(RingAddresses {
            descriptors,
            available,
            used,
            ..
        }) = self.address
        else {
            return Err(RingError::NoAddress);
        };
        let config = RingConfig {
            memory: memory.clone(),
            layout: Layout {
                size: self.size,
                descriptors,
                available,
                used,
            },
            features,
            base: self.base,
            kick,
            call: self.call.take(),
            err: self.err.take(),
            enabled: self.enabled,
            log: self.log(features, log),
            mtu,
        };
        self.running = true;
        self.mailbox.post(RingCommand::Start(Box::new(config)));
        Ok(())
    }

    /// Stops the ring if it is running, and closes its descriptors.
    pub(crate) fn stop(&mut self) {
        self.call = None;
        self.err = None;
        if std::mem::take(&mut self.running) {
            self.mailbox.post(RingCommand::Stop);
        }
    }

    /// Clears the configuration of a stopped ring.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.mailbox.clone());
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    fn check_stopped(&self) -> Result<(), RingError> {
        if self.running {
            Err(RingError::Running)
        } else {
            Ok(())
        }
    }

    fn post_if_running(&self, command: impl FnOnce() -> RingCommand) {
        if self.running {
            self.mailbox.post(command());
        }
    }

    fn log(&self, features: Features, log: Option<&Arc<DirtyLog>>) -> Option<RingLog> {
        let log = log.filter(|_| features.has(Features::LOG_ALL))?.clone();
        let used = self.address.and_then(|address| address.log);
        Some(RingLog {
            log,
            used: used.map(|address| (address, 6 + 8 * u64::from(self.size))),
        })
    }
}

/// Makes a descriptor non-blocking, because signalling must not block on a full pipe or on an eventfd that is not read.
fn set_nonblocking(signalled: Option<&OwnedFd>) -> Result<(), RingError> {
    signalled.map_or(Ok(()), |fd| {
        rustix::io::ioctl_fionbio(fd, true).map_err(RingError::Blocking)
    })
}

/// Flag VHOST_VRING_F_LOG in the message SET_VRING_ADDR.
const LOGGED: u32 = 1;
