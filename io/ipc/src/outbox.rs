//! Queue of messages that wait for room in a socket.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use crate::ChannelMessage;
use crate::send_error::{RETRY_DELAY, SendError};

/// Queue of unsent messages, and the time of the next attempt if a send failed for a reason other than a full socket
/// buffer.
#[derive(Debug)]
pub(crate) struct Outbox<S> {
    unsent: VecDeque<S>,
    capacity: usize,
    overflowed: bool,
    retry_at: Option<Instant>,
}

/// Error of a full queue: the limit on queued messages was reached, and all of them were dropped. The receiving process no
/// longer has the whole state and has to be restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxOverflow;

impl<S: ChannelMessage> Outbox<S> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            unsent: VecDeque::new(),
            capacity,
            overflowed: false,
            retry_at: None,
        }
    }

    /// Appends a message, and removes older messages that it replaces. After an overflow, messages are dropped.
    ///
    /// # Errors
    /// The limit is reached. The error is returned once.
    pub(crate) fn push(&mut self, message: S) -> Result<(), OutboxOverflow> {
        if self.overflowed {
            return Ok(());
        }
        if S::REPLACES {
            self.unsent.retain(|older| !message.replaces(older));
        }
        if self.unsent.len() >= self.capacity {
            self.unsent.clear();
            self.retry_at = None;
            self.overflowed = true;
            return Err(OutboxOverflow);
        }
        self.unsent.push_back(message);
        Ok(())
    }

    /// Returns true if no message is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Returns true if queued messages wait for room in the socket buffer.
    pub(crate) fn wants_room(&self) -> bool {
        !self.unsent.is_empty() && self.retry_at.is_none()
    }

    /// Returns the time of the next attempt, if queued messages wait for something other than room.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Sends queued messages by `send` until one cannot be sent. If the user's other processes have so many descriptors in
    /// flight that the kernel refuses to send another (`ETOOMANYREFS`), a message with descriptors stays queued, and
    /// messages for which [`ChannelMessage::may_overtake`] is true are sent before it.
    pub(crate) fn flush(&mut self, now: Instant, send: impl Fn(&S) -> io::Result<()>) {
        if self.retry_at.is_some_and(|retry_at| now < retry_at) {
            return;
        }
        self.retry_at = None;
        let mut at = 0;
        while let Some(message) = self.unsent.get(at) {
            if at > 0 && !message.may_overtake() {
                at += 1;
                continue;
            }
            if let Err(error) = send(message) {
                match SendError::classify(&error) {
                    SendError::Full => return,
                    SendError::Temporary => {
                        tracing::debug!(%error, "a message to another process is delayed");
                        self.retry_at = Some(now + RETRY_DELAY);
                        if message.descriptors().is_empty() {
                            return;
                        }
                        at += 1;
                        continue;
                    }
                    // The successor of the process is started with the current state, so the message is not needed.
                    SendError::Closed => {
                        tracing::debug!(%error, "a message was dropped, as the process has exited");
                    }
                    SendError::Invalid => tracing::error!(%error, "cannot send a message to another process"),
                }
            }
            self.unsent.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::message::tests::{TestMessage, file};

    /// Flushes the queue to a process for which every send returns `error`; returns the messages that were sent.
    fn flush(outbox: &mut Outbox<TestMessage>, now: Instant, error: Option<i32>) -> Vec<TestMessage> {
        let sent = RefCell::new(Vec::new());
        outbox.flush(now, |message| match error {
            Some(number) => Err(io::Error::from_raw_os_error(number)),
            None => {
                sent.borrow_mut().push(message.clone());
                Ok(())
            }
        });
        sent.into_inner()
    }

    fn outbox() -> Outbox<TestMessage> {
        let mut outbox = Outbox::new(100);
        for message in [
            TestMessage::State(0),
            TestMessage::Event(1),
            TestMessage::State(2),
        ] {
            outbox.push(message).unwrap();
        }
        outbox
    }

    #[test]
    fn messages_are_retried_after_a_shortage_of_the_host() {
        for number in [libc::ENOBUFS, libc::ENOMEM, libc::ETOOMANYREFS] {
            let (mut outbox, start) = (outbox(), Instant::now());
            assert_eq!(flush(&mut outbox, start, Some(number)), []);
            assert_eq!(outbox.retry_at(), Some(start + RETRY_DELAY));
            assert!(!outbox.wants_room());
            assert_eq!(flush(&mut outbox, start, None), []);
            let all = flush(&mut outbox, start + RETRY_DELAY, None);
            assert_eq!(all, [TestMessage::Event(1), TestMessage::State(2)]);
            assert_eq!((outbox.retry_at(), outbox.wants_room()), (None, false));
        }
    }

    #[test]
    fn states_overtake_messages_that_wait_for_descriptors() {
        let with_file = file(7);
        let (mut outbox, start) = (Outbox::new(100), Instant::now());
        let sent = RefCell::new(Vec::new());
        let short = |message: &TestMessage| match message.descriptors().is_empty() {
            false => Err(io::Error::from_raw_os_error(libc::ETOOMANYREFS)),
            true => {
                sent.borrow_mut().push(message.clone());
                Ok(())
            }
        };
        for message in [with_file.clone(), TestMessage::Event(1), TestMessage::State(2)] {
            outbox.push(message).unwrap();
        }
        outbox.flush(start, short);
        assert_eq!(sent.take(), [TestMessage::State(2)]);
        outbox.push(TestMessage::State(3)).unwrap();
        outbox.flush(start + RETRY_DELAY, short);
        assert_eq!(sent.take(), [TestMessage::State(3)]);
        let left = flush(&mut outbox, start + 2 * RETRY_DELAY, None);
        assert_eq!(left, [with_file, TestMessage::Event(1)]);
    }

    #[test]
    fn messages_wait_for_room_in_a_full_socket() {
        let (mut outbox, now) = (outbox(), Instant::now());
        assert_eq!(flush(&mut outbox, now, Some(libc::EAGAIN)), []);
        assert_eq!((outbox.retry_at(), outbox.wants_room()), (None, true));
        assert_eq!(flush(&mut outbox, now, None).len(), 2);
    }

    #[test]
    fn messages_are_dropped_after_a_permanent_error() {
        for number in [libc::EPIPE, libc::ECONNRESET, libc::EMSGSIZE] {
            let (mut outbox, now) = (outbox(), Instant::now());
            assert_eq!(flush(&mut outbox, now, Some(number)), []);
            assert_eq!((outbox.retry_at(), outbox.wants_room()), (None, false));
        }
    }

    #[test]
    fn overflow_is_returned_once_and_drops_all_messages() {
        let mut outbox = Outbox::new(10);
        let results: Vec<_> = (0..30)
            .map(|number| outbox.push(TestMessage::Event(number)))
            .collect();
        assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1);
        assert_eq!(results[10], Err(OutboxOverflow));
        assert!(!outbox.wants_room());
    }
}
