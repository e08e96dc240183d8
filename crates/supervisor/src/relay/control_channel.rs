//! The way to a worker.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use pontoon_relay_worker::messages::Message;
use pontoon_sys::seqpacket;
use rustix::event::{PollFd, PollFlags};

use crate::refused::{PAUSE, Refused};

/// What a worker does not take at once waits here, in order: one that hears nothing, as it is stopped, say, holds nobody
/// up.
#[derive(Debug)]
pub(super) struct ControlChannel {
    socket: OwnedFd,
    queue: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    overflowed: bool,
    /// When to try again, where the host is short of something else than room in the socket.
    retry_at: Option<Instant>,
}

/// Whoever is at the other end would not know all that it has to: another has to take its place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QueueOverflow;

/// Messages that may wait: more than all that there is to say to a worker that has just been born.
const MAX_QUEUED: usize = 1 << 17;

impl ControlChannel {
    /// # Errors
    /// The kernel's.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self {
            socket,
            queue: VecDeque::new(),
            overflowed: false,
            retry_at: None,
        })
    }

    /// Says it now, or when there is room. To one that is dead, nothing: its successor will be told everything.
    ///
    /// # Errors
    /// Too much waits already, or the descriptor cannot be kept. Told once.
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
            Ok(descriptor) if self.queue.len() < MAX_QUEUED => {
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

    /// Says what there is room for by now.
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

    /// When to go on, where there is nothing to poll for.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// What to poll for room, where something waits for it.
    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        (!self.queue.is_empty() && self.retry_at.is_none()).then(|| PollFd::new(&self.socket, PollFlags::OUT))
    }

    /// Whether it has not to be said again.
    fn try_send(&mut self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> bool {
        let Err(error) = seqpacket::send(&self.socket, bytes, descriptor.as_slice()) else {
            return true;
        };
        match Refused::why(&error) {
            Refused::Full => false,
            Refused::ForNow => {
                tracing::debug!(%error, "a worker is told later");
                self.retry_at = Some(Instant::now() + PAUSE);
                false
            }
            Refused::Gone | Refused::Never => {
                tracing::debug!(%error, "a worker was not told");
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

    fn channel() -> (ControlChannel, OwnedFd) {
        let (ours, theirs) = seqpacket::pair().unwrap();
        (ControlChannel::new(ours).unwrap(), theirs)
    }

    #[test]
    fn what_is_not_taken_waits_in_order() {
        let (mut channel, theirs) = channel();
        for row in 0..1000 {
            let descriptor = (row % 2 == 0).then(|| theirs.as_fd());
            channel.send(&Message::RemoveRule(row), descriptor).unwrap();
        }
        let mut buffer = [0; 64];
        for row in 0..1000 {
            channel.flush(Instant::now());
            let message = seqpacket::receive(&theirs, &mut buffer).unwrap().unwrap();
            let said = Message::decode(&buffer[..message.len]).unwrap();
            assert_eq!(said, Message::RemoveRule(row));
            assert_eq!(message.descriptors.len(), usize::from(row % 2 == 0));
        }
        assert!(channel.poll_fd().is_none());
    }

    #[test]
    fn who_never_listens_is_given_up_once() {
        let (mut channel, _theirs) = channel();
        let refused =
            (0..2 * MAX_QUEUED).filter(|_| channel.send(&Message::Commit, None) == Err(QueueOverflow));
        assert_eq!(refused.count(), 1);
        assert!(channel.poll_fd().is_none());
    }

    #[test]
    fn the_dead_are_told_nothing() {
        let (mut channel, theirs) = channel();
        drop(theirs);
        channel.send(&Message::Commit, None).unwrap();
        assert!(channel.poll_fd().is_none());
    }
}
