//! Positions of one side (driver or device) in both rings of a virtqueue, and suppression of notifications.
//!
//! Driver and device execute the same code with the two rings exchanged: each publishes entries in the ring that it
//! writes, and consumes entries of the ring that its peer writes.
//!
//! **No notification is lost.** Before a side sleeps, it requests a notification ([`Cursor::rearm`] stores the event
//! index or the flag) and then reads the peer's index once more. A side with new entries first stores its index
//! ([`Cursor::publish`]) and then reads whether the peer requested a notification. Each side has a sequentially
//! consistent fence between its store and its load; release and acquire would not do, since they allow a load to be
//! reordered before an earlier store to another location. One of the two fences comes first in their total order, and
//! the side with the other fence sees what was stored before it: either the sleeping side sees the new entry or the
//! publishing side sees the request (virtio 1.2, section 2.7.13.4.1, and the note in section 2.7.14).

use crate::index::Index;
use crate::memory::Area;
use crate::rings::RingPart;

/// Positions of one side (driver or device) in both rings of a virtqueue.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    event_idx: bool,
    /// Index behind the last entry that this side has written to its own ring; the entry may be unpublished.
    written: Index,
    /// Index that this side has published in its own ring.
    published: Index,
    /// Index behind the last entry of the peer's ring that this side has consumed.
    consumed: Index,
    /// The peer's index when this side has last read it.
    seen: Index,
    /// Notification request that this side has last written to its own ring, as flags or event index; `None` if a
    /// previous owner of the queue has written it.
    request: Option<u16>,
}

/// The need to notify the peer of what was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the peer may sleep until it is notified"]
pub enum Notification {
    /// The peer requested a notification.
    Required,
    /// The peer suppressed notifications, or nothing was published.
    NotRequired,
}

/// Error: the peer's index has this value, which the protocol does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidIndex(pub(crate) u16);

impl Cursor {
    /// Creates positions with the next own entry at `own` and the next entry of the peer at `peer`.
    pub(crate) const fn new(event_idx: bool, own: Index, peer: Index) -> Self {
        Self {
            event_idx,
            written: own,
            published: own,
            consumed: peer,
            seen: peer,
            request: None,
        }
    }

    pub(crate) const fn written(&self) -> Index {
        self.written
    }

    pub(crate) const fn published(&self) -> Index {
        self.published
    }

    pub(crate) const fn consumed(&self) -> Index {
        self.consumed
    }

    pub(crate) const fn seen(&self) -> Index {
        self.seen
    }

    /// Returns the peer's next unconsumed entry, if the last [`poll`](Self::poll) has seen one.
    pub(crate) fn next_entry(&self) -> Option<Index> {
        (self.consumed != self.seen).then_some(self.consumed)
    }

    /// Consumes the peer's next entry, which must exist.
    pub(crate) fn consume(&mut self) {
        debug_assert!(self.next_entry().is_some());
        self.consumed = self.consumed.forward(1);
    }

    /// Returns the last `entries` consumed entries of the peer to the unconsumed ones.
    pub(crate) fn rewind(&mut self, entries: u16) {
        self.consumed = self.consumed.back(entries);
    }

    /// Returns the position for the next entry in the own ring, and counts that entry as written.
    pub(crate) fn write(&mut self) -> Index {
        let entry = self.written;
        self.written = entry.forward(1);
        entry
    }

    /// Reads the peer's index and returns the number of its unconsumed entries. It is an error if the index is more
    /// than `most` entries behind `base` or has moved backwards.
    pub(crate) fn poll<A: Area>(
        &mut self,
        peer: &RingPart<A>,
        base: Index,
        most: u16,
    ) -> Result<u16, InvalidIndex> {
        let index = peer.index();
        let entries = base.until(index);
        if entries > most || entries < base.until(self.seen) {
            return Err(InvalidIndex(index.get()));
        }
        self.seen = index;
        Ok(self.consumed.until(index))
    }

    /// Stores the own index.
    pub(crate) fn publish<A: Area>(&mut self, own: &RingPart<A>, peer: &RingPart<A>) -> Notification {
        let old = self.published;
        if self.written == old {
            return Notification::NotRequired;
        }
        own.set_index(self.written);
        self.published = self.written;
        // The request is read after the own index is visible (2.7.13.4.1).
        A::fence();
        let is_requested = if self.event_idx {
            old.passes(self.published, peer.event())
        } else {
            peer.flags() & NO_NOTIFY == 0
        };
        match is_requested {
            true => Notification::Required,
            false => Notification::NotRequired,
        }
    }

    /// Requests a notification for the peer's next entry after those that this side has seen. The caller must read the
    /// peer's index afterwards, before it sleeps.
    pub(crate) fn rearm<A: Area>(&mut self, own: &RingPart<A>) {
        let request = if self.event_idx { self.seen.get() } else { 0 };
        self.set_request(own, request);
        // The peer's index is read after the own request is visible (the note in 2.7.14).
        A::fence();
    }

    /// Requests that the peer send no notifications.
    ///
    /// With event indices, this requests a notification for the entry before the next one, which the peer reaches after
    /// 65,535 more entries. The request is renewed before the peer, which can be 32,768 entries ahead, could get there.
    pub(crate) fn suppress<A: Area>(&mut self, own: &RingPart<A>) {
        if !self.event_idx {
            self.set_request(own, NO_NOTIFY);
        } else if !self
            .request
            .is_some_and(|event| (1..=32_768).contains(&Index::new(event).until(self.consumed)))
        {
            self.set_request(own, self.consumed.back(1).get());
        }
    }

    /// Writes a notification request to the own ring if it differs from the last one, because the peer reads this cache
    /// line at each notification.
    fn set_request<A: Area>(&mut self, own: &RingPart<A>, request: u16) {
        if self.request.replace(request) == Some(request) {
            return;
        }
        if self.event_idx {
            own.set_event(Index::new(request));
        } else {
            own.set_flags(request);
        }
    }
}

/// Flag in a ring's header that suppresses notifications: `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY`.
const NO_NOTIFY: u16 = 1;
