//! Queue of messages that wait for room in a socket.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use crate::send_error::{RETRY_DELAY, SendError};
use crate::{ChannelMessage, Descriptor};

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

    /// Sends queued messages by `send` until one cannot be sent. If the user's processes have so many descriptors in flight
    /// that the kernel refuses to pass another (`ETOOMANYREFS`), a message that may lack its descriptors is sent without
    /// them: the guest is a process of the same user and can keep that shortage up, which must not delay later messages.
    pub(crate) fn flush(&mut self, now: Instant, send: impl Fn(&S) -> io::Result<()>) {
        if self.retry_at.is_some_and(|retry_at| now < retry_at) {
            return;
        }
        self.retry_at = None;
        while let Some(message) = self.unsent.front_mut() {
            let sent = send(message).or_else(|error| match error.raw_os_error() {
                Some(libc::ETOOMANYREFS) if message.may_lack_descriptors() => {
                    tracing::warn!("a message is sent without its file descriptors: {error}");
                    message.descriptors_mut().into_iter().for_each(Descriptor::clear);
                    send(message)
                }
                _ => Err(error),
            });
            if let Err(error) = sent {
                match SendError::classify(&error) {
                    SendError::Full => return,
                    SendError::Temporary => {
                        tracing::debug!(%error, "a message to another process is delayed");
                        self.retry_at = Some(now + RETRY_DELAY);
                        return;
                    }
                    // The successor of the process is started with the current state, so the message is not needed.
                    SendError::Closed => {
                        tracing::debug!(%error, "a message was dropped, as the process has exited");
                    }
                    SendError::Invalid => tracing::error!(%error, "cannot send a message to another process"),
                }
            }
            self.unsent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use super::*;
    use crate::message::tests::{TestMessage, file, null};

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
    fn message_that_may_lack_descriptors_is_sent_without_them_if_too_many_are_in_flight() {
        let files = TestMessage::Files(vec![Arc::new(null()).into(), Arc::new(null()).into()]);
        let without = TestMessage::Files(vec![Descriptor::default(), Descriptor::default()]);
        let with_file = file(7);
        let (mut outbox, start) = (Outbox::new(100), Instant::now());
        let sent = RefCell::new(Vec::new());
        let short = |message: &TestMessage| {
            let passes = |descriptor: &Descriptor| descriptor.borrow().is_some();
            match message.descriptors().into_iter().any(passes) {
                true => Err(io::Error::from_raw_os_error(libc::ETOOMANYREFS)),
                false => {
                    sent.borrow_mut().push(message.clone());
                    Ok(())
                }
            }
        };
        for message in [
            files,
            TestMessage::Event(1),
            with_file.clone(),
            TestMessage::Event(2),
        ] {
            outbox.push(message).unwrap();
        }
        outbox.flush(start, short);
        assert_eq!(sent.take(), [without, TestMessage::Event(1)]);
        assert_eq!(outbox.retry_at(), Some(start + RETRY_DELAY));
        let left = flush(&mut outbox, start + RETRY_DELAY, None);
        assert_eq!(left, [with_file, TestMessage::Event(2)]);
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
