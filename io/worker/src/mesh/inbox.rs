//! The inbox of a worker: frames of its flows and the supervisor's updates, both put by other workers.

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

/// Frames that may wait. With the longest ones that is 16 MiB; what is more is lost, as on a link that is full.
pub(super) const ROOM: usize = 256;

/// Frames of one burst, as from the link.
const BURST: usize = pontoon_link::BURST;

/// One worker's inbox.
#[derive(Debug)]
pub(super) struct Inbox {
    frames: ArrayQueue<Box<Parcel>>,
    /// Parcels that were opened, for those to come: nothing is allocated once there are as many as are ever on their way.
    spare: ArrayQueue<Box<Parcel>>,
    /// One of each kind at most, but for events.
    updates: Mutex<Vec<Update>>,
    bell: OwnedFd,
    /// The bell has rung since the worker last looked.
    rung: AtomicBool,
}

/// A copy of a frame.
#[derive(Debug)]
struct Parcel {
    offload: Offload,
    reassembled: bool,
    head: ArrayVec<u8, HEAD>,
    /// The frame; behind it, bytes of longer frames that used the buffer before.
    bytes: Vec<u8>,
    len: usize,
}

impl Inbox {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            frames: ArrayQueue::new(ROOM),
            spare: ArrayQueue::new(ROOM),
            updates: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            rung: AtomicBool::new(false),
        })
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Adds a copy of `frame`.
    pub(super) fn put(&self, frame: &Frame<'_>, reassembled: bool) -> HandOver {
        if self.frames.is_full() {
            return HandOver::Dropped;
        }
        let mut parcel = self.spare.pop().unwrap_or_else(Parcel::empty);
        parcel.fill(frame, reassembled);
        match self.frames.push(parcel) {
            Ok(()) => {
                self.ring();
                HandOver::Queued
            }
            Err(parcel) => {
                let _ = self.spare.push(parcel);
                HandOver::Dropped
            }
        }
    }

    /// Puts an update in, in the place of an earlier one that it replaces.
    pub(super) fn put_update(&self, update: Update) {
        let mut updates = self.lock();
        updates.retain(|earlier| !update.replaces(earlier));
        updates.push(update);
        drop(updates);
        self.ring();
    }

    /// Notifies the worker, once for all entries that it has not yet taken.
    pub(super) fn ring(&self) {
        // The owner clears the mark before it reads the queue. If the owner clears it first, this call finds the mark clear
        // and writes to the eventfd. If this call sets it first, the owner's later read finds the entries that were put in
        // before, by the order of the two exchanges.
        if !self.rung.swap(true, Ordering::AcqRel) {
            // It fails only where the count is at its end, which 2^64 calls do not reach. The count is never
            // read: each write is an edge.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Hands up to a burst of frames to `sink`: how many, and whether there may be more.
    pub(super) fn receive(&self, sink: impl FnOnce(&[Handed<'_>])) -> (usize, bool) {
        self.rung.swap(false, Ordering::AcqRel);
        let mut parcels = ArrayVec::<Box<Parcel>, BURST>::new();
        while !parcels.is_full()
            && let Some(parcel) = self.frames.pop()
        {
            parcels.push(parcel);
        }
        if parcels.is_empty() {
            return (0, false);
        }
        let count = parcels.len();
        let mut wholes = ArrayVec::<(&[u8], VolatileSlice<'_>, Offload, bool), BURST>::new();
        for parcel in &mut parcels {
            let Parcel {
                offload,
                reassembled,
                head,
                bytes,
                len,
            } = &mut **parcel;
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
        for parcel in parcels {
            // If the queue of spare parcels is full, this one is freed.
            let _ = self.spare.push(parcel);
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

impl Parcel {
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
