//! Bounded queues between a network and the program, with a descriptor to poll.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::FlowRequest;

/// Limit on the requests of a [`RequestQueue`]: all that can be pending at one time for four workers.
const MOST_REQUESTS: usize = 4096;

/// Limit on the records of an [`EventQueue`]. Further ones wait in the engine's memory, as long as that has room.
const MOST_EVENTS: usize = 4096;

/// Queue of requests for decisions ([`NetworkBuilder::decide_by_queue`](crate::NetworkBuilder::decide_by_queue)). Copies share
/// their content.
///
/// A request may be older than its deadline when it is taken; a verdict about it has no effect. While 4,096 requests wait,
/// new flows are denied.
#[derive(Clone, Debug)]
pub struct RequestQueue(pub(crate) Arc<Queue<FlowRequest>>);

/// Queue of records about flows, as lines of JSON
/// ([`NetworkBuilder::events_by_queue`](crate::NetworkBuilder::events_by_queue)). Copies share their content.
///
/// While 4,096 records wait, events wait in the engine's memory; those for which that has no room are lost, and a record of the
/// type `gap` names their numbers. In a network without a thread, [`Network::dispatch`](crate::Network::dispatch) adds the
/// records; it has to be called again after records were taken from a full queue.
#[derive(Clone, Debug)]
pub struct EventQueue(pub(crate) Arc<Queue<String>>);

/// Queue with an eventfd that is readable while the queue is not empty.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    room: Condvar,
    event: OwnedFd,
    capacity: usize,
}

#[derive(Debug)]
struct QueueState<T> {
    entries: VecDeque<T>,
    /// True if the capacity does not apply any more, because the network ends.
    unbounded: bool,
}

impl<T> Queue<T> {
    fn new(capacity: usize) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            state: Mutex::new(QueueState {
                entries: VecDeque::new(),
                unbounded: false,
            }),
            room: Condvar::new(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            capacity,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry, without waiting.
    ///
    /// # Errors
    /// The queue is full; the entry is returned.
    pub(crate) fn push(&self, entry: T) -> Result<(), T> {
        let mut state = self.lock();
        if state.entries.len() >= self.capacity && !state.unbounded {
            return Err(entry);
        }
        self.add(&mut state, entry);
        Ok(())
    }

    /// Adds an entry; waits until there is room.
    pub(crate) fn push_waiting(&self, entry: T) {
        let is_full = |state: &mut QueueState<T>| state.entries.len() >= self.capacity && !state.unbounded;
        let state = self.room.wait_while(self.lock(), is_full);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        self.add(&mut state, entry);
    }

    /// Returns the number of entries for which there is room.
    pub(crate) fn room(&self) -> usize {
        let state = self.lock();
        match state.unbounded {
            true => usize::MAX,
            false => self.capacity.saturating_sub(state.entries.len()),
        }
    }

    fn add(&self, state: &mut QueueState<T>, entry: T) {
        if state.entries.is_empty() {
            // The count is 0, so that the write succeeds.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
        state.entries.push_back(entry);
    }

    fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        let entry = state.entries.pop_front()?;
        if state.entries.is_empty() {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
        self.room.notify_one();
        Some(entry)
    }

    /// Removes the limit: no thread waits for room any more.
    pub(crate) fn remove_limit(&self) {
        self.lock().unbounded = true;
        self.room.notify_all();
    }
}

impl RequestQueue {
    pub(crate) fn new() -> io::Result<Self> {
        Queue::new(MOST_REQUESTS).map(Self)
    }

    /// Returns the oldest request, without waiting; `None` if there is none.
    #[must_use]
    pub fn try_next(&self) -> Option<FlowRequest> {
        self.0.pop()
    }

    /// Returns the oldest request, and waits up to `timeout` for one; `None` at the timeout. It may return earlier if
    /// several threads take requests from this queue.
    #[must_use]
    pub fn next(&self, timeout: Duration) -> Option<FlowRequest> {
        next(&self.0, timeout)
    }
}

impl EventQueue {
    pub(crate) fn new() -> io::Result<Self> {
        Queue::new(MOST_EVENTS).map(Self)
    }

    /// Returns the oldest record, without waiting; `None` if there is none. It is a line without the newline.
    #[must_use]
    pub fn try_next(&self) -> Option<String> {
        self.0.pop()
    }

    /// Returns the oldest record, and waits up to `timeout` for one; `None` at the timeout. It may return earlier if
    /// several threads take records from this queue.
    #[must_use]
    pub fn next(&self, timeout: Duration) -> Option<String> {
        next(&self.0, timeout)
    }
}

fn next<T>(queue: &Queue<T>, timeout: Duration) -> Option<T> {
    if let Some(entry) = queue.pop() {
        return Some(entry);
    }
    let _ = crate::network::wait(queue.event.as_fd(), rustix::event::PollFlags::IN, Some(timeout));
    queue.pop()
}

/// The descriptor is readable while there is a request.
impl AsFd for RequestQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

/// The descriptor is readable while there is a record.
impl AsFd for EventQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::PollFlags;

    fn is_readable(queue: &Queue<u32>) -> bool {
        crate::network::wait(queue.event.as_fd(), PollFlags::IN, Some(Duration::ZERO)).unwrap()
    }

    #[test]
    fn descriptor_is_readable_while_there_are_entries() {
        let queue = Queue::new(2).unwrap();
        assert!(!is_readable(&queue));
        queue.push(1).unwrap();
        queue.push(2).unwrap();
        assert_eq!(queue.push(3), Err(3));
        assert_eq!(queue.pop(), Some(1));
        assert!(is_readable(&queue));
        assert_eq!(queue.pop(), Some(2));
        assert!(!is_readable(&queue));
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn thread_that_waits_for_room_continues_when_the_limit_is_removed() {
        let queue = Queue::new(1).unwrap();
        queue.push(1).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                queue.push_waiting(2);
                queue.push_waiting(3);
            });
            assert_eq!(queue.pop(), Some(1));
            queue.remove_limit();
        });
        assert_eq!([queue.pop(), queue.pop()], [Some(2), Some(3)]);
    }
}
