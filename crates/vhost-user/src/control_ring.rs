//! A ring as the front-end describes it, piece by piece, until there is enough to start it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use pontoon_ring::Layout;
use rustix::io::Errno;

use crate::features::Features;
use crate::half::Setup;
use crate::log::{Log, RingLog};
use crate::mailbox::{Answer, Mailbox, Order};
use crate::memory::Table;
use crate::message::RingAddress;

/// One ring, from the control side.
#[derive(Debug)]
pub(crate) struct Ring {
    mailbox: Arc<Mailbox>,
    /// It has been started, and not been stopped.
    running: bool,
    size: u16,
    address: Option<Address>,
    base: u16,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
    enabled: bool,
}

/// Where a ring lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Address {
    /// As the guest's physical addresses.
    descriptors: u64,
    available: u64,
    used: u64,
    /// Of the used ring, for the log.
    log: Option<u64>,
}

/// Why a ring cannot be as it is described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("a size of {0}")]
    Size(u32),
    #[error("its base is {0}")]
    Base(u32),
    #[error("{0:#x} is not in memory")]
    Address(u64),
    #[error("changed while it is running")]
    Running,
    #[error("started without an address")]
    Nowhere,
    #[error("to be polled, which is not supported")]
    Polled,
    #[error("a descriptor that cannot be made non-blocking: {0}")]
    Blocking(Errno),
}

impl Ring {
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

    /// Whether whoever works on it has something to answer.
    pub(crate) fn is_busy(&self) -> bool {
        self.mailbox.is_busy()
    }

    /// What became of the last order.
    pub(crate) fn collect(&mut self) -> Option<Answer> {
        let answer = self.mailbox.answer()?;
        match answer {
            Answer::Stopped(Some(base)) => self.base = base,
            Answer::Refused(_) => self.running = false,
            Answer::Stopped(None) | Answer::Done => {}
        }
        Some(answer)
    }

    /// Available entries taken, when it was stopped.
    pub(crate) fn base(&self) -> u16 {
        self.base
    }

    pub(crate) fn set_size(&mut self, size: u32) -> Result<(), Unusable> {
        self.resting()?;
        self.size = u16::try_from(size)
            .ok()
            .filter(|size| size.is_power_of_two() && *size <= 1 << 15)
            .ok_or(Unusable::Size(size))?;
        Ok(())
    }

    /// While it is running it may not move, but begin to be logged or end.
    pub(crate) fn set_address(&mut self, address: RingAddress, memory: &Table) -> Result<(), Unusable> {
        let find = |user| memory.guest_address(user).ok_or(Unusable::Address(user));
        let found = Address {
            descriptors: find(address.descriptors)?,
            available: find(address.available)?,
            used: find(address.used)?,
            log: (address.flags & LOGGED != 0).then_some(address.log),
        };
        let moved = self.address.is_none_or(|old| {
            Address {
                log: found.log,
                ..old
            } != found
        });
        if moved {
            self.resting()?;
        }
        self.address = Some(found);
        Ok(())
    }

    pub(crate) fn set_base(&mut self, base: u32) -> Result<(), Unusable> {
        self.resting()?;
        self.base = u16::try_from(base).map_err(|_| Unusable::Base(base))?;
        Ok(())
    }

    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>) -> Result<(), Unusable> {
        never_blocks(call.as_ref())?;
        match self.running {
            true => self.mailbox.post(Order::Call(call)),
            false => self.call = call,
        }
        Ok(())
    }

    pub(crate) fn set_err(&mut self, err: Option<OwnedFd>) -> Result<(), Unusable> {
        never_blocks(err.as_ref())?;
        match self.running {
            true => self.mailbox.post(Order::Err(err)),
            false => self.err = err,
        }
        Ok(())
    }

    pub(crate) fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
        self.tell(|| Order::Enable(enabled));
    }

    /// Whether it is enabled without being told so.
    pub(crate) fn set_default(&mut self, enabled: bool) {
        if !self.running {
            self.enabled |= enabled;
        }
    }

    pub(crate) fn set_memory(&mut self, memory: &Arc<Table>) {
        self.tell(|| Order::Memory(memory.clone()));
    }

    pub(crate) fn set_log(&mut self, features: Features, log: Option<&Arc<Log>>) {
        let log = self.log(features, log);
        self.tell(|| Order::Log(log));
    }

    /// Starts it, or lets it wait for another descriptor.
    pub(crate) fn start(
        &mut self,
        kick: Option<OwnedFd>,
        memory: &Arc<Table>,
        features: Features,
        log: Option<&Arc<Log>>,
        mtu: usize,
    ) -> Result<(), Unusable> {
        self.resting()?;
        let kick = kick.ok_or(Unusable::Polled)?;
        let Some(Address {
            descriptors,
            available,
            used,
            ..
        }) = self.address
        else {
            return Err(Unusable::Nowhere);
        };
        let setup = Setup {
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
        self.mailbox.post(Order::Start(Box::new(setup)));
        Ok(())
    }

    /// Stops it, if it is running. Its descriptors are closed.
    pub(crate) fn stop(&mut self) {
        self.call = None;
        self.err = None;
        if std::mem::take(&mut self.running) {
            self.mailbox.post(Order::Stop);
        }
    }

    /// Forgets what it was. It is not running.
    pub(crate) fn forget(&mut self) {
        *self = Self::new(self.mailbox.clone());
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    fn resting(&self) -> Result<(), Unusable> {
        match self.running {
            true => Err(Unusable::Running),
            false => Ok(()),
        }
    }

    fn tell(&self, order: impl FnOnce() -> Order) {
        if self.running {
            self.mailbox.post(order());
        }
    }

    fn log(&self, features: Features, log: Option<&Arc<Log>>) -> Option<RingLog> {
        let log = log.filter(|_| features.has(Features::LOG_ALL))?.clone();
        let used = self.address.and_then(|address| address.log);
        Some(RingLog {
            log,
            used: used.map(|address| (address, 6 + 8 * u64::from(self.size))),
        })
    }
}

/// Who signals waits for nobody, be it a pipe that is full or an eventfd that nobody reads.
fn never_blocks(signalled: Option<&OwnedFd>) -> Result<(), Unusable> {
    signalled.map_or(Ok(()), |fd| {
        rustix::io::ioctl_fionbio(fd, true).map_err(Unusable::Blocking)
    })
}

/// VHOST_VRING_F_LOG.
const LOGGED: u32 = 1;
