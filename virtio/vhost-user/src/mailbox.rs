//! Commands from the control thread to the thread that serves a ring.
//!
//! The control thread puts a command into the ring's mailbox and signals the mailbox's eventfd. The ring's thread
//! executes it between two bursts, stores the response, and signals the device's eventfd. There is one command at a
//! time, and neither thread blocks: the device reads the next message when all responses are stored. The packet path
//! checks one flag.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::data_plane::RingConfig;
use crate::log::RingLog;
use crate::memory::MemoryTable;

/// A change to a ring.
#[derive(Debug)]
pub(crate) enum Command {
    /// Start serving a ring. The ring must be stopped.
    Start(Box<RingConfig>),
    /// Stop serving the ring and return its position.
    Stop,
    /// Replace the memory table.
    Memory(Arc<MemoryTable>),
    /// Replace the descriptor that signals the driver.
    Call(Option<OwnedFd>),
    /// Replace the descriptor that signals errors.
    Err(Option<OwnedFd>),
    /// Enable or disable the ring.
    Enable(bool),
    /// Replace the dirty log.
    Log(Option<RingLog>),
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    Done,
    /// The ring has stopped, with this many available entries taken (and returned). `None`: there was no ring.
    Stopped(Option<u16>),
    /// The command failed.
    Failed(String),
}

/// The mailbox of one ring.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// A command is pending. Redundant with the slot, but read without taking its lock.
    pending: AtomicBool,
    slot: Mutex<CommandState>,
    event: OwnedFd,
    /// The device's eventfd.
    control_event: Arc<OwnedFd>,
}

#[derive(Debug, Default)]
enum CommandState {
    #[default]
    Idle,
    Pending(Command),
    /// Taken by the ring's thread, which is executing it.
    Executing,
    Done(Response),
    /// No thread serves this ring any more.
    Closed,
}

/// Creates an eventfd for [`signal`].
pub(crate) fn new_event() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Signals `event`, which is watched edge-triggered and never read.
pub(crate) fn signal(event: &OwnedFd) {
    // It fails only if the counter is at its maximum of 2^64 - 2.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

impl Mailbox {
    pub(crate) fn new(control_event: Arc<OwnedFd>) -> Result<Self, Errno> {
        Ok(Self {
            pending: AtomicBool::new(false),
            slot: Mutex::default(),
            event: new_event()?,
            control_event,
        })
    }

    pub(crate) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Device side: posts a command. The previous one must have a response, which was taken.
    pub(crate) fn post(&self, command: Command) {
        let mut slot = self.slot();
        match *slot {
            CommandState::Idle => {
                *slot = CommandState::Pending(command);
                self.pending.store(true, Ordering::Release);
                signal(&self.event);
            }
            CommandState::Closed => {}
            CommandState::Pending(_) | CommandState::Executing | CommandState::Done(_) => {
                debug_assert!(false, "two commands at a time");
            }
        }
    }

    /// Device side: returns whether a command has no response yet.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(*self.slot(), CommandState::Pending(_) | CommandState::Executing)
    }

    /// Device side: returns and removes the response, if there is one. There is none from a ring that no thread serves.
    pub(crate) fn take_response(&self) -> Option<Response> {
        let mut slot = self.slot();
        match std::mem::take(&mut *slot) {
            CommandState::Done(response) => Some(response),
            CommandState::Closed => {
                *slot = CommandState::Closed;
                None
            }
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Ring side: returns whether a command is pending.
    pub(crate) fn has_command(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Ring side: executes the pending command, if there is one.
    pub(crate) fn execute(&self, execute: impl FnOnce(Command) -> Response) {
        let mut slot = self.slot();
        self.pending.store(false, Ordering::Relaxed);
        *slot = match std::mem::take(&mut *slot) {
            CommandState::Pending(command) => {
                *slot = CommandState::Executing;
                drop(slot);
                let response = execute(command);
                slot = self.slot();
                CommandState::Done(response)
            }
            other => other,
        };
        drop(slot);
        signal(&self.control_event);
    }

    /// Ring side: closes the mailbox, since no thread serves this ring any more.
    pub(crate) fn close(&self) {
        *self.slot() = CommandState::Closed;
        signal(&self.control_event);
    }

    fn slot(&self) -> MutexGuard<'_, CommandState> {
        // The slot is valid at all times: no code panics while changing it.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
