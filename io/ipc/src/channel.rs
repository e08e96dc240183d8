//! Typed channel between two processes, over a `SOCK_SEQPACKET` socket.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use pontoon_sys::seqpacket;

use crate::message::{ChannelMessage, decode, encode};
use crate::outbox::{Outbox, OutboxOverflow};

/// Channel over which messages of type `S` are sent and messages of type `R` are received. No function blocks.
#[derive(Debug)]
pub struct Channel<S, R> {
    socket: OwnedFd,
    outbox: Outbox<S>,
    /// Buffer for a received message, allocated by the first receive.
    buffer: Vec<u8>,
    receives: PhantomData<fn() -> R>,
}

impl<S: ChannelMessage, R: ChannelMessage> Channel<S, R> {
    /// Wraps a `SOCK_SEQPACKET` socket, and makes it non-blocking. `capacity` is the limit on queued messages; it must be
    /// at least the number of messages that are sent without a flush between them.
    ///
    /// # Errors
    /// The kernel refuses fcntl(2).
    pub fn new(socket: OwnedFd, capacity: usize) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self {
            socket,
            outbox: Outbox::new(capacity),
            buffer: Vec::new(),
            receives: PhantomData,
        })
    }

    /// Returns another channel over the same socket. Its queue has no room: it sends by [`Self::try_send`] only.
    ///
    /// # Errors
    /// No free descriptor.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            socket: self.socket.try_clone()?,
            outbox: Outbox::new(0),
            buffer: Vec::new(),
            receives: PhantomData,
        })
    }

    /// Sends a message, or queues it. Messages to a process that has exited are dropped, because its successor receives the
    /// whole state.
    ///
    /// # Errors
    /// The queue is full. The error is returned once; later messages are dropped.
    pub fn send(&mut self, message: S) -> Result<(), OutboxOverflow> {
        // Queued messages are sent only when the socket has room or the time of the next attempt has come.
        let idle = self.outbox.is_empty();
        self.outbox.push(message)?;
        if idle {
            self.flush(Instant::now());
        }
        Ok(())
    }

    /// Sends queued messages until the socket has no more room.
    pub fn flush(&mut self, now: Instant) {
        let socket = &self.socket;
        self.outbox.flush(now, |message| send(socket, message));
    }

    /// Sends a message immediately, before queued ones.
    ///
    /// # Errors
    /// `WouldBlock` if the socket has no room; `InvalidInput` if the message is too long or has too many descriptors;
    /// otherwise the error of sendmsg(2).
    pub fn try_send(&self, message: &S) -> io::Result<()> {
        send(&self.socket, message)
    }

    /// Returns true if queued messages wait until the socket is writable.
    #[must_use]
    pub fn wants_room(&self) -> bool {
        self.outbox.wants_room()
    }

    /// Returns the time at which to call [`Self::flush`], if queued messages wait for something other than room in the
    /// socket.
    #[must_use]
    pub fn retry_at(&self) -> Option<Instant> {
        self.outbox.retry_at()
    }

    /// Receives a message; returns `None` if the other end is closed. Messages that the other process sent before it exited
    /// are received: if that process left messages unread, the kernel returns ECONNRESET once before them (unix(7)), which
    /// is skipped.
    ///
    /// # Errors
    /// `InvalidData` if the message is refused; the next one can be received. `WouldBlock` if there is no message.
    /// Otherwise the error of recvmsg(2).
    pub fn receive(&mut self) -> io::Result<Option<R>> {
        self.buffer.resize(R::MAX_LEN, 0);
        let received = match seqpacket::receive_what_fits(&self.socket, &mut self.buffer) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                seqpacket::receive_what_fits(&self.socket, &mut self.buffer)?
            }
            received => received?,
        };
        let Some(message) = received else {
            return Ok(None);
        };
        let bytes = self.buffer.get(..message.len).unwrap_or_default();
        decode(bytes, message.descriptors).map(Some)
    }
}

impl<S, R> Channel<S, R> {
    /// Shuts the connection down, which the other process detects even if copies of this socket are open.
    pub fn shutdown(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl<S, R> AsFd for Channel<S, R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn send<S: ChannelMessage>(socket: &OwnedFd, message: &S) -> io::Result<()> {
    let bytes = encode(message)?;
    // The receiver assigns descriptors by their order, so none may be missing before another.
    let places = message.descriptors();
    let descriptors: Vec<_> = places.iter().map_while(|place| place.borrow()).collect();
    let lacks_all = descriptors.is_empty() && places.iter().all(|place| place.borrow().is_none());
    if descriptors.len() < places.len() && !(lacks_all && message.may_lack_descriptors()) {
        let what = "a message lacks a file descriptor";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    seqpacket::send(socket, &bytes, &descriptors)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::descriptor::Descriptor;
    use crate::message::tests::{TestMessage, file, null};

    type TestChannel = Channel<TestMessage, TestMessage>;

    fn pair(capacity: usize) -> (TestChannel, TestChannel) {
        let (ours, theirs) = seqpacket::pair().unwrap();
        (
            Channel::new(ours, capacity).unwrap(),
            Channel::new(theirs, capacity).unwrap(),
        )
    }

    #[test]
    fn messages_that_do_not_fit_are_sent_later_in_order() {
        let (mut ours, mut theirs) = pair(2000);
        for number in 0..1000 {
            let message = match number % 2 {
                0 => file(number),
                _ => TestMessage::Event(number),
            };
            ours.send(message).unwrap();
        }
        assert!(ours.wants_room());
        for number in 0..1000 {
            ours.flush(Instant::now());
            match theirs.receive().unwrap().unwrap() {
                TestMessage::File(received, file) => {
                    assert_eq!((received, file.borrow().is_some()), (number, true));
                }
                message => assert_eq!(message, TestMessage::Event(number)),
            }
        }
        assert!(!ours.wants_room());
        assert_eq!(theirs.receive().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn refused_message_is_followed_by_the_next_one() {
        let (ours, mut theirs) = pair(1);
        let descriptor = null();
        seqpacket::send(&ours, b"nonsense", &[]).unwrap();
        seqpacket::send(&ours, b"{\"event\":1}", &[descriptor.as_fd()]).unwrap();
        seqpacket::send(&ours, &[b' '; TestMessage::MAX_LEN + 1], &[]).unwrap();
        ours.try_send(&TestMessage::Event(2)).unwrap();
        for _ in 0..3 {
            assert_eq!(theirs.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(theirs.receive().unwrap(), Some(TestMessage::Event(2)));
    }

    #[test]
    fn message_to_an_exited_process_is_dropped() {
        let (mut ours, theirs) = pair(10);
        drop(theirs);
        ours.send(TestMessage::Event(1)).unwrap();
        assert!(!ours.wants_room());
        assert_eq!(ours.receive().unwrap(), None);
    }

    #[test]
    fn messages_of_a_peer_that_closed_with_unread_data_are_received() {
        let (mut ours, theirs) = pair(10);
        ours.send(TestMessage::Event(1)).unwrap();
        theirs.try_send(&TestMessage::Event(2)).unwrap();
        drop(theirs);
        assert_eq!(ours.receive().unwrap(), Some(TestMessage::Event(2)));
        assert_eq!(ours.receive().unwrap(), None);
    }

    #[test]
    fn message_that_lacks_a_descriptor_is_not_sent() {
        let (ours, mut theirs) = pair(10);
        let files = TestMessage::Files(vec![Descriptor::default(), Arc::new(null()).into()]);
        assert_eq!(
            ours.try_send(&files).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert_eq!(theirs.receive().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
