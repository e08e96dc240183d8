//! One side's place in the ring, and when the two sides wake each other.
//!
//! Driver and device do the same thing with the halves exchanged: each publishes entries in its own half and consumes
//! those of its peer's. This is the code for both.
//!
//! **No notification is lost.** A side that goes to sleep first says that it wants to be notified ([`Cursor::rearm`]:
//! store the event), then looks at the peer's index once more. A side that has something new first publishes it
//! ([`Cursor::publish`]: store the index), then looks whether the peer wants to be notified. Between the store and the
//! load each has a sequentially consistent fence; release and acquire would not do, as they let a load overtake an
//! earlier store to another place. Of two such fences one comes first, and the side with the other one sees what was
//! stored before it: either the sleeper sees the entry or the publisher sees the wish (2.7.13.4.1, and the note in
//! 2.7.14).

use crate::half::Half;
use crate::index::Index;
use crate::memory::Area;

/// How far one side has got, both ways.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    event_idx: bool,
    /// Own entries written, which the peer may not have been shown yet.
    written: Index,
    /// Own entries that the peer has been shown.
    published: Index,
    /// The peer's entries that were taken.
    consumed: Index,
    /// The peer's entries that are known of.
    seen: Index,
    /// What stands in our half about notifications, flags or event; `None` when somebody else wrote it.
    wish: Option<u16>,
}

/// The peer's index is where it cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Runaway(pub(crate) u16);

impl Cursor {
    /// Begins, or goes on, with own entries at `own` and the peer's at `peer`.
    pub(crate) const fn new(event_idx: bool, own: Index, peer: Index) -> Self {
        Self {
            event_idx,
            written: own,
            published: own,
            consumed: peer,
            seen: peer,
            wish: None,
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

    /// The peer's next entry, if the last look at its index showed one.
    pub(crate) fn waiting(&self) -> Option<Index> {
        (self.consumed != self.seen).then_some(self.consumed)
    }

    /// Takes the entry that waits.
    pub(crate) fn consume(&mut self) {
        debug_assert!(self.waiting().is_some());
        self.consumed = self.consumed.forward(1);
    }

    /// Gives back the last `entries` entries that were taken.
    pub(crate) fn unconsume(&mut self, entries: u16) {
        self.consumed = self.consumed.back(entries);
    }

    /// Where the next own entry belongs; it counts as written from now on.
    pub(crate) fn write(&mut self) -> Index {
        let entry = self.written;
        self.written = entry.forward(1);
        entry
    }

    /// Looks how far the peer has got, and says how many of its entries wait. It cannot be more than `most` entries
    /// after `base`, nor before where it was.
    pub(crate) fn look<A: Area>(&mut self, peer: &Half<A>, base: Index, most: u16) -> Result<u16, Runaway> {
        let index = peer.index();
        let entries = base.until(index);
        if entries > most || entries < base.until(self.seen) {
            return Err(Runaway(index.get()));
        }
        self.seen = index;
        Ok(self.consumed.until(index))
    }

    /// Shows the peer what was written, and says whether it wants to be notified.
    pub(crate) fn publish<A: Area>(&mut self, own: &Half<A>, peer: &Half<A>) -> bool {
        let old = self.published;
        if self.written == old {
            return false;
        }
        own.set_index(self.written);
        self.published = self.written;
        // The peer's wish is read after our index can be seen (2.7.13.4.1).
        A::fence();
        if self.event_idx {
            old.passes(self.published, peer.event())
        } else {
            peer.flags() & NO_NOTIFY == 0
        }
    }

    /// Asks the peer to notify of its next entry, after those that are known of. The caller has to look at the peer's
    /// index after this.
    pub(crate) fn rearm<A: Area>(&mut self, own: &Half<A>) {
        let wish = if self.event_idx { self.seen.get() } else { 0 };
        self.wish(own, wish);
        // The peer's index is read after our wish can be seen (the note in 2.7.14).
        A::fence();
    }

    /// Asks the peer not to notify.
    ///
    /// By event index that is the entry before the next one: its turn comes in 65,535 entries. It is said again before
    /// the peer, which can be 32,768 entries ahead of us, could get there.
    pub(crate) fn suppress<A: Area>(&mut self, own: &Half<A>) {
        if !self.event_idx {
            self.wish(own, NO_NOTIFY);
        } else if !self
            .wish
            .is_some_and(|event| (1..=32_768).contains(&Index::new(event).until(self.consumed)))
        {
            self.wish(own, self.consumed.back(1).get());
        }
    }

    /// Writes the line that the peer reads at each notification only when that changes something.
    fn wish<A: Area>(&mut self, own: &Half<A>, wish: u16) {
        if self.wish.replace(wish) == Some(wish) {
            return;
        }
        if self.event_idx {
            own.set_event(Index::new(wish));
        } else {
            own.set_flags(wish);
        }
    }
}

/// VIRTQ_AVAIL_F_NO_INTERRUPT and VIRTQ_USED_F_NO_NOTIFY.
const NO_NOTIFY: u16 = 1;
