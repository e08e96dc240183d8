//! Inbox of a worker: frames of its flows and the supervisor's updates, which other workers put into it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;
use pontoon_engine::Frame;
use pontoon_engine::siblings::{HandOver, Handed};
use pontoon_ipc::ChannelMessage as _;
use pontoon_wire::frame::HEAD;
use pontoon_wire::vnet::Offload;
use rustix::event::{EventfdFlags, eventfd};
use vm_memory::VolatileSlice;

use crate::Update;

/// Limit on the frames in an inbox; with the longest frames they have 16 MiB. Further frames are lost, as on a link that is
/// full.
pub(super) const ROOM: usize = 256;

/// Limit on the frames that are taken from an inbox at once, which is that of the link.
const BURST: usize = pontoon_link::BURST;

/// Inbox of one worker.
#[derive(Debug)]
pub(super) struct Inbox {
    frames: ArrayQueue<Box<QueuedFrame>>,
    /// Buffers of frames that were taken, for reuse: nothing is allocated once there are as many buffers as frames that are
    /// queued at the same time.
    spare: ArrayQueue<Box<QueuedFrame>>,
    /// Updates of the supervisor; for each kind that is a state, only the latest.
    updates: Mutex<Vec<Update>>,
    event: OwnedFd,
    /// True if the eventfd was written since the last [`Self::receive`].
    signalled: AtomicBool,
}

/// Copy of a frame in an inbox.
#[derive(Debug)]
struct QueuedFrame {
    offload: Offload,
    reassembled: bool,
    head: ArrayVec<u8, HEAD>,
    /// Bytes of the frame; after them, bytes of longer frames that used the buffer before.
    bytes: Vec<u8>,
    len: usize,
}

impl Inbox {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            frames: ArrayQueue::new(ROOM),
            spare: ArrayQueue::new(ROOM),
            updates: Mutex::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            signalled: AtomicBool::new(false),
        })
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Adds a copy of `frame`, or drops the frame if the inbox is full.
    pub(super) fn put(&self, frame: &Frame<'_>, reassembled: bool) -> HandOver {
        if self.frames.is_full() {
            return HandOver::Dropped;
        }
        let mut copy = self.spare.pop().unwrap_or_else(QueuedFrame::empty);
        copy.fill(frame, reassembled);
        match self.frames.push(copy) {
            Ok(()) => {
                self.signal();
                HandOver::Queued
            }
            Err(copy) => {
                let _ = self.spare.push(copy);
                HandOver::Dropped
            }
        }
    }

    /// Adds an update of the supervisor, and removes an earlier one that it replaces.
    pub(super) fn put_update(&self, update: Update) {
        let mut updates = self.lock();
        updates.retain(|earlier| !update.replaces(earlier));
        updates.push(update);
        drop(updates);
        self.signal();
    }

    /// Notifies the worker, once for all entries that it has not taken yet.
    pub(super) fn signal(&self) {
        // The owner clears the mark before it reads the queue. If the owner clears it first, this call finds the mark clear
        // and writes to the eventfd. If this call sets it first, the owner's later read finds the entries that were added
        // before, by the order of the two exchanges.
        if !self.signalled.swap(true, Ordering::AcqRel) {
            // A write fails only if the eventfd's count is at its maximum, which 2^64 calls do not reach. The count is
            // never read: each write causes an edge.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Passes up to a burst of frames to `sink`; returns their number, and true if there may be more.
    pub(super) fn receive(&self, sink: impl FnOnce(&[Handed<'_>])) -> (usize, bool) {
        self.signalled.swap(false, Ordering::AcqRel);
        let mut queued = ArrayVec::<Box<QueuedFrame>, BURST>::new();
        while !queued.is_full()
            && let Some(copy) = self.frames.pop()
        {
            queued.push(copy);
        }
        if queued.is_empty() {
            return (0, false);
        }
        let count = queued.len();
        let mut wholes = ArrayVec::<(&[u8], VolatileSlice<'_>, Offload, bool), BURST>::new();
        for copy in &mut queued {
            let QueuedFrame {
                offload,
                reassembled,
                head,
                bytes,
                len,
            } = &mut **copy;
            let whole = VolatileSlice::from(&mut bytes[..*len]);
            wholes.push((head, whole, *offload, *reassembled));
        }
        let frames: ArrayVec<Handed<'_>, BURST> = wholes
            .iter()
            .map(|(head, whole, offload, reassembled)| Handed {
                frame: Frame {
                    offload: *offload,
                    head,
                    parts: std::slice::from_ref(whole),
                    len: whole.len(),
                },
                reassembled: *reassembled,
            })
            .collect();
        sink(&frames);
        drop(frames);
        drop(wholes);
        for copy in queued {
            // If the queue of spare buffers is full, this buffer is freed.
            let _ = self.spare.push(copy);
        }
        (count, count == BURST)
    }

    pub(super) fn updates(&self) -> Vec<Update> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Update>> {
        self.updates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuedFrame {
    fn empty() -> Box<Self> {
        Box::new(Self {
            offload: Offload::NONE,
            reassembled: false,
            head: ArrayVec::new(),
            bytes: Vec::new(),
            len: 0,
        })
    }

    fn fill(&mut self, frame: &Frame<'_>, reassembled: bool) {
        self.offload = frame.offload;
        self.reassembled = reassembled;
        self.head = frame.head.iter().copied().take(HEAD).collect();
        if self.bytes.len() < frame.len {
            self.bytes.resize(frame.len, 0);
        }
        self.len = frame.copy(0, &mut self.bytes[..frame.len]);
    }
}
