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
pub(super) struct Line {
    socket: OwnedFd,
    unsent: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    cut: bool,
    /// When to try again, where the host is short of something else than room in the socket.
    again: Option<Instant>,
}

/// Whoever is at the other end would not know all that it has to: another has to take its place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut;

/// Messages that may wait: more than all that there is to say to a worker that has just been born.
const MOST: usize = 1 << 17;

impl Line {
    /// # Errors
    /// The kernel's.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self {
            socket,
            unsent: VecDeque::new(),
            cut: false,
            again: None,
        })
    }

    /// Says it now, or when there is room. To one that is dead, nothing: its successor will be told everything.
    ///
    /// # Errors
    /// Too much waits already, or the descriptor cannot be kept. Told once.
    pub(super) fn say(&mut self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Cut> {
        if self.cut {
            return Ok(());
        }
        let bytes = message.encode();
        if self.unsent.is_empty() && self.goes(&bytes, descriptor) {
            return Ok(());
        }
        let descriptor = descriptor.map(|fd| fd.try_clone_to_owned()).transpose();
        match descriptor {
            Ok(descriptor) if self.unsent.len() < MOST => {
                self.unsent.push_back((bytes, descriptor));
                Ok(())
            }
            Ok(_) | Err(_) => {
                self.unsent.clear();
                self.again = None;
                self.cut = true;
                Err(Cut)
            }
        }
    }

    /// Says what there is room for by now.
    pub(super) fn go_on(&mut self, now: Instant) {
        if self.again.is_some_and(|again| now < again) {
            return;
        }
        self.again = None;
        while let Some((bytes, descriptor)) = self.unsent.pop_front() {
            if !self.goes(&bytes, descriptor.as_ref().map(AsFd::as_fd)) {
                self.unsent.push_front((bytes, descriptor));
                return;
            }
        }
    }

    /// When to go on, where there is nothing to poll for.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        self.again
    }

    /// What to poll for room, where something waits for it.
    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        (!self.unsent.is_empty() && self.again.is_none()).then(|| PollFd::new(&self.socket, PollFlags::OUT))
    }

    /// Whether it has not to be said again.
    fn goes(&mut self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> bool {
        let Err(error) = seqpacket::send(&self.socket, bytes, descriptor.as_slice()) else {
            return true;
        };
        match Refused::why(&error) {
            Refused::Full => false,
            Refused::ForNow => {
                tracing::debug!(%error, "a worker is told later");
                self.again = Some(Instant::now() + PAUSE);
                false
            }
            Refused::Gone | Refused::Never => {
                tracing::debug!(%error, "a worker was not told");
                true
            }
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> (Line, OwnedFd) {
        let (ours, theirs) = seqpacket::pair().unwrap();
        (Line::new(ours).unwrap(), theirs)
    }

    #[test]
    fn what_is_not_taken_waits_in_order() {
        let (mut line, theirs) = line();
        for row in 0..1000 {
            let descriptor = (row % 2 == 0).then(|| theirs.as_fd());
            line.say(&Message::NoRule(row), descriptor).unwrap();
        }
        let mut buffer = [0; 64];
        for row in 0..1000 {
            line.go_on(Instant::now());
            let message = seqpacket::receive(&theirs, &mut buffer).unwrap().unwrap();
            let said = Message::decode(&buffer[..message.len]).unwrap();
            assert_eq!(said, Message::NoRule(row));
            assert_eq!(message.descriptors.len(), usize::from(row % 2 == 0));
        }
        assert!(line.poll_fd().is_none());
    }

    #[test]
    fn who_never_listens_is_given_up_once() {
        let (mut line, _theirs) = line();
        let refused = (0..2 * MOST).filter(|_| line.say(&Message::Commit, None) == Err(Cut));
        assert_eq!(refused.count(), 1);
        assert!(line.poll_fd().is_none());
    }

    #[test]
    fn the_dead_are_told_nothing() {
        let (mut line, theirs) = line();
        drop(theirs);
        line.say(&Message::Commit, None).unwrap();
        assert!(line.poll_fd().is_none());
    }
}
