//! Mailbox of a ring: commands from the control thread to the thread that serves the ring, and responses.
//!
//! The control thread puts a command into the ring's mailbox and signals the mailbox's eventfd. The ring's thread
//! executes it between two bursts, stores the response, and signals the device's eventfd. There is at most one command
//! at a time, and neither thread blocks: the control thread reads the front-end's next message when all responses are
//! stored. Processing frames costs the check of one flag.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::data_plane::RingConfig;
use crate::log::RingLog;
use crate::memory::MemoryTable;

/// A command of the control thread that changes a ring.
#[derive(Debug)]
pub(crate) enum RingCommand {
    /// Starts the ring, which must be stopped, with a configuration.
    Start(Box<RingConfig>),
    /// Stops the ring and returns its position.
    Stop,
    /// Replaces the memory table, the mappings of the guest's memory.
    Memory(Arc<MemoryTable>),
    /// Replaces the descriptor that signals the driver (call).
    Call(Option<OwnedFd>),
    /// Replaces the descriptor that signals errors to the front-end.
    Err(Option<OwnedFd>),
    /// Enables or disables the ring; frames on a disabled ring are dropped.
    Enable(bool),
    /// Replaces the dirty log; `None` ends logging.
    Log(Option<RingLog>),
}

/// Response of the ring's thread to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RingResponse {
    Done,
    /// The ring has stopped after it had taken, and returned, this number of available entries; `None` if no ring was
    /// active.
    Stopped(Option<u16>),
    /// The command has failed, for the reason in the text.
    Failed(String),
}

/// The mailbox of one ring, shared by the control thread and the ring's thread.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// True if a command is pending. The slot has the same information, but this flag is read without its lock.
    pending: AtomicBool,
    slot: Mutex<CommandState>,
    event: OwnedFd,
    /// Eventfd of the device, which is signalled when a response is stored.
    control_event: Arc<OwnedFd>,
}

#[derive(Debug, Default)]
enum CommandState {
    #[default]
    Idle,
    Pending(RingCommand),
    /// The ring's thread has taken the command and is executing it.
    Executing,
    Done(RingResponse),
    /// No thread serves the ring any more.
    Closed,
}

/// Creates a non-blocking eventfd for [`signal`].
pub(crate) fn new_event() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Signals `event`, which is registered edge triggered and usually not read.
pub(crate) fn signal(event: &OwnedFd) {
    // The write fails only if the counter is at its maximum of 2^64 - 2.
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

    /// Posts a command (control thread). The response to the previous command must have been taken.
    pub(crate) fn post(&self, command: RingCommand) {
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

    /// Returns true if a command has no response yet (control thread).
    pub(crate) fn is_busy(&self) -> bool {
        matches!(*self.slot(), CommandState::Pending(_) | CommandState::Executing)
    }

    /// Removes and returns the response, if there is one (control thread). A ring that no thread serves has none.
    pub(crate) fn take_response(&self) -> Option<RingResponse> {
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

    /// Returns true if a command is pending (ring's thread).
    pub(crate) fn has_command(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Executes the pending command, if there is one (ring's thread).
    pub(crate) fn execute(&self, execute: impl FnOnce(RingCommand) -> RingResponse) {
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

    /// Closes the mailbox, because no thread serves the ring any more (ring's thread).
    pub(crate) fn close(&self) {
        *self.slot() = CommandState::Closed;
        signal(&self.control_event);
    }

    fn slot(&self) -> MutexGuard<'_, CommandState> {
        // A poisoned lock is used, because the slot is always valid: no code panics while it changes the slot.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
