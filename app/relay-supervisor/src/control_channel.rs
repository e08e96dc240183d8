//! Socket to a worker, with a queue of messages that it has not taken yet.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use pontoon_process::child::send_error::{PAUSE, SendError};
use pontoon_relay_worker::messages::Message;
use pontoon_sys::seqpacket;
use rustix::event::{PollFd, PollFlags};

/// A socket to a worker. Messages that do not fit into its buffer are queued in order, so a worker that is stopped does not
/// block the supervisor.
#[derive(Debug)]
pub(super) struct ControlChannel {
    socket: OwnedFd,
    queue: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    /// Limit on the messages in the queue.
    max_queued: usize,
    overflowed: bool,
    /// Time of the next attempt, if the host was short of another resource than room in the socket.
    retry_at: Option<Instant>,
}

/// The queue is full or a descriptor could not be queued. The worker does not have the whole state any more and has to be
/// restarted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QueueOverflow;

impl ControlChannel {
    /// `max_queued` is the limit on queued messages. It is at least the number of messages that a new worker is sent at once.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn new(socket: OwnedFd, max_queued: usize) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self {
            socket,
            queue: VecDeque::new(),
            max_queued,
            overflowed: false,
            retry_at: None,
        })
    }

    /// Sends a message, or queues it. Nothing is sent to a worker that has exited; its successor receives the whole state.
    ///
    /// # Errors
    /// The queue is full, or the descriptor cannot be duplicated. Returned once.
    pub(super) fn send(
        &mut self,
        message: &Message,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), QueueOverflow> {
        if self.overflowed {
            return Ok(());
        }
        let bytes = message.encode();
        if self.queue.is_empty() && self.try_send(&bytes, descriptor) {
            return Ok(());
        }
        let descriptor = descriptor.map(|fd| fd.try_clone_to_owned()).transpose();
        match descriptor {
            Ok(descriptor) if self.queue.len() < self.max_queued => {
                self.queue.push_back((bytes, descriptor));
                Ok(())
            }
            Ok(_) | Err(_) => {
                self.queue.clear();
                self.retry_at = None;
                self.overflowed = true;
                Err(QueueOverflow)
            }
        }
    }

    /// Sends queued messages as far as there is room.
    pub(super) fn flush(&mut self, now: Instant) {
        if self.retry_at.is_some_and(|retry_at| now < retry_at) {
            return;
        }
        self.retry_at = None;
        while let Some((bytes, descriptor)) = self.queue.pop_front() {
            if !self.try_send(&bytes, descriptor.as_ref().map(AsFd::as_fd)) {
                self.queue.push_front((bytes, descriptor));
                return;
            }
        }
    }

    /// Returns the time of the next attempt, if no descriptor announces it.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Returns what to poll for room, if messages are queued.
    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        (!self.queue.is_empty() && self.retry_at.is_none()).then(|| PollFd::new(&self.socket, PollFlags::OUT))
    }

    /// Returns true unless the message must be queued and retried.
    fn try_send(&mut self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> bool {
        let Err(error) = seqpacket::send(&self.socket, bytes, descriptor.as_slice()) else {
            return true;
        };
        match SendError::of(&error) {
            SendError::WouldBlock => false,
            SendError::Temporary => {
                tracing::debug!(%error, "message to a worker queued");
                self.retry_at = Some(Instant::now() + PAUSE);
                false
            }
            SendError::Closed | SendError::Invalid => {
                tracing::debug!(%error, "message to a worker dropped");
                true
            }
        }
    }
}

impl AsFd for ControlChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_QUEUED: usize = 2000;

    fn channel() -> (ControlChannel, OwnedFd) {
        let (ours, theirs) = seqpacket::pair().unwrap();
        (ControlChannel::new(ours, MAX_QUEUED).unwrap(), theirs)
    }

    #[test]
    fn messages_that_do_not_fit_are_sent_later_in_order() {
        let (mut channel, theirs) = channel();
        for row in 0..1000 {
            let descriptor = (row % 2 == 0).then(|| theirs.as_fd());
            channel.send(&Message::RemoveRule(row), descriptor).unwrap();
        }
        let mut buffer = [0; 64];
        for row in 0..1000 {
            channel.flush(Instant::now());
            let message = seqpacket::receive(&theirs, &mut buffer).unwrap().unwrap();
            let received = Message::decode(&buffer[..message.len]).unwrap();
            assert_eq!(received, Message::RemoveRule(row));
            assert_eq!(message.descriptors.len(), usize::from(row % 2 == 0));
        }
        assert!(channel.poll_fd().is_none());
    }

    #[test]
    fn full_queue_is_reported_once() {
        let (mut channel, _theirs) = channel();
        let refused =
            (0..2 * MAX_QUEUED).filter(|_| channel.send(&Message::Commit, None) == Err(QueueOverflow));
        assert_eq!(refused.count(), 1);
        assert!(channel.poll_fd().is_none());
    }

    #[test]
    fn message_to_an_exited_worker_is_dropped() {
        let (mut channel, theirs) = channel();
        drop(theirs);
        channel.send(&Message::Commit, None).unwrap();
        assert!(channel.poll_fd().is_none());
    }
}
