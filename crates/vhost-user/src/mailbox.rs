//! How the control socket's thread changes a ring that another thread works on.
//!
//! An order is put into the ring's mailbox and its bell is rung; the ring's thread obeys between two bursts, puts the
//! answer in its place, and rings the device's bell. There is one order at a time, and nobody waits: the device reads the
//! next message when all answers to this one are there. The packet path looks at one flag.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::half::Setup;
use crate::log::RingLog;
use crate::memory::Table;

/// A change to a ring.
#[derive(Debug)]
pub(crate) enum Order {
    /// Serve this ring. There is none.
    Start(Box<Setup>),
    /// Say where the ring has got to, and forget it.
    Stop,
    /// The guest's memory is this now.
    Memory(Arc<Table>),
    /// The driver is signalled by this now.
    Call(Option<OwnedFd>),
    /// Errors are told by this now.
    Err(Option<OwnedFd>),
    /// Serve the ring, or leave it alone.
    Enable(bool),
    /// Mark what is written here, or nowhere.
    Log(Option<RingLog>),
}

/// What became of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// The ring has stopped, with so many available entries taken (and returned). `None`: there was no ring.
    Stopped(Option<u16>),
    /// It cannot be done.
    Refused(String),
}

/// One ring's mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// An order is there. Not needed for what is in the slot, which has its lock: it spares taking that.
    waiting: AtomicBool,
    slot: Mutex<Slot>,
    bell: OwnedFd,
    /// The device's bell.
    answered: Arc<OwnedFd>,
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Idle,
    Ordered(Order),
    /// Taken out, being obeyed.
    Underway,
    Answered(Answer),
    /// Nobody works on this ring any more.
    Closed,
}

/// An eventfd for [`ring`].
pub(crate) fn bell() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Wakes whoever sleeps on `bell`, edge-triggered: nobody reads it.
pub(crate) fn ring(bell: &OwnedFd) {
    // It fails when 2^64 - 2 rings have not been heard.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

impl Mailbox {
    pub(crate) fn new(answered: Arc<OwnedFd>) -> Result<Self, Errno> {
        Ok(Self {
            waiting: AtomicBool::new(false),
            slot: Mutex::default(),
            bell: bell()?,
            answered,
        })
    }

    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// The device's side: puts an order in. The last one has been answered.
    pub(crate) fn post(&self, order: Order) {
        let mut slot = self.slot();
        match *slot {
            Slot::Idle => {
                *slot = Slot::Ordered(order);
                self.waiting.store(true, Ordering::Release);
                ring(&self.bell);
            }
            Slot::Closed => {}
            Slot::Ordered(_) | Slot::Underway | Slot::Answered(_) => {
                debug_assert!(false, "two orders at a time");
            }
        }
    }

    /// The device's side: whether an order has not been answered.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(*self.slot(), Slot::Ordered(_) | Slot::Underway)
    }

    /// The device's side: the answer, if there is one. A ring that nobody works on any more does as it is told.
    pub(crate) fn answer(&self) -> Option<Answer> {
        let mut slot = self.slot();
        match std::mem::take(&mut *slot) {
            Slot::Answered(answer) => Some(answer),
            Slot::Closed => {
                *slot = Slot::Closed;
                None
            }
            other => {
                *slot = other;
                None
            }
        }
    }

    /// The ring's side: whether there is an order.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// The ring's side: obeys the order, if there is one.
    pub(crate) fn obey(&self, how: impl FnOnce(Order) -> Answer) {
        let mut slot = self.slot();
        self.waiting.store(false, Ordering::Relaxed);
        *slot = match std::mem::take(&mut *slot) {
            Slot::Ordered(order) => {
                *slot = Slot::Underway;
                drop(slot);
                let answer = how(order);
                slot = self.slot();
                Slot::Answered(answer)
            }
            other => other,
        };
        drop(slot);
        ring(&self.answered);
    }

    /// The ring's side: nobody works on this ring from now on.
    pub(crate) fn close(&self) {
        *self.slot() = Slot::Closed;
        ring(&self.answered);
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        // A slot is whole at all times: nothing panics while it is changed.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
