//! What a process of ours says, up to its end.

use std::io;
use std::os::fd::AsFd;

use pontoon_sys::seqpacket::{self, Message};

/// Receives one message. Of a process that has died with something unread the kernel says that first, and only once; what
/// the process had said comes after.
///
/// # Errors
/// As [`seqpacket::receive`].
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<Message>> {
    match seqpacket::receive(&socket, buffer) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => seqpacket::receive(&socket, buffer),
        received => received,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_dies_with_something_unread_is_still_heard() {
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
