//! Virtual time: a queue of events. The time advances from one event to the next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pontoon_engine::Instant;

/// A queue of events by time. Events at the same time are returned in the order of insertion.
#[derive(Debug)]
pub struct EventQueue<T> {
    heap: BinaryHeap<Reverse<QueuedEvent<T>>>,
    count: u64,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            count: 0,
        }
    }
}

impl<T> EventQueue<T> {
    /// Adds the event `what` at the time `at`.
    pub fn push(&mut self, at: Instant, what: T) {
        self.count += 1;
        self.heap.push(Reverse(QueuedEvent {
            at,
            order: self.count,
            what,
        }));
    }

    /// Returns the time of the earliest queued event.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.0.at)
    }

    /// Removes and returns the next event if it is due at `now`.
    pub fn pop(&mut self, now: Instant) -> Option<T> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|entry| entry.0.what)
    }

    /// Returns the number of queued events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns true if no event is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

/// Returns the earlier of two times; `None` means never.
#[must_use]
pub fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// An event with its time and its number in the order of insertion.
#[derive(Debug)]
struct QueuedEvent<T> {
    at: Instant,
    order: u64,
    what: T,
}

impl<T> PartialEq for QueuedEvent<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<T> Eq for QueuedEvent<T> {}

impl<T> PartialOrd for QueuedEvent<T> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for QueuedEvent<T> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_by_time_and_then_by_insertion() {
        let mut agenda = EventQueue::default();
        agenda.push(Instant(20), 'c');
        agenda.push(Instant(10), 'a');
        agenda.push(Instant(10), 'b');
        assert_eq!(agenda.pop(Instant(9)), None);
        let mut order = String::new();
        while let Some(next) = agenda.pop(Instant(20)) {
            order.push(next);
        }
        assert_eq!(order, "abc");
    }
}
