//! Messages from a child process, including those that it sent before it exited.

use std::io;
use std::os::fd::AsFd;

use pontoon_sys::seqpacket::{self, SeqpacketMessage};

/// Receives one message. If the child exited with unread messages in its own receive queue, the kernel returns ECONNRESET
/// once (unix(7)) before the messages that the child had sent; that error is skipped.
///
/// # Errors
/// As [`seqpacket::receive`].
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<SeqpacketMessage>> {
    match seqpacket::receive(&socket, buffer) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => seqpacket::receive(&socket, buffer),
        received => received,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_peer_that_closed_with_unread_data_are_received() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        seqpacket::send(&ours, b"unread", &[]).unwrap();
        seqpacket::send(&theirs, b"no memory", &[]).unwrap();
        drop(theirs);
        let mut buffer = [0; 16];
        let message = receive(&ours, &mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..message.len], b"no memory");
        assert!(receive(&ours, &mut buffer).unwrap().is_none());
    }
}
