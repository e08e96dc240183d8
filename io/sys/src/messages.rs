//! Several messages of a connected socket in one system call (recvmmsg(2), sendmmsg(2)).

use std::io::IoSlice;
use std::os::fd::AsFd;

use arrayvec::ArrayVec;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::header::{self, BatchedHeader, MessageHeader};

/// Limit on the number of messages of one call.
pub const MOST: usize = 64;

/// Length of one message of a recvmmsg(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchedMessage {
    /// Number of bytes of the message that were received.
    pub len: usize,
    /// True if the message was longer than its slice, so that its end was discarded (`MSG_TRUNC`).
    pub truncated: bool,
}

/// Receives messages that have arrived, one into each slice of `into` and at most [`MOST`], without blocking.
///
/// # Errors
/// Errors of recvmmsg(2) at the first message. When the peer has closed the connection, an empty message is returned.
pub fn receive(
    socket: impl AsFd,
    into: &[VolatileSlice<'_>],
) -> Result<ArrayVec<BatchedMessage, MOST>, Errno> {
    let parts: ArrayVec<libc::iovec, MOST> = into
        .iter()
        .take(MOST)
        .map(|part| libc::iovec {
            iov_base: part.ptr_guard_mut().as_ptr().cast(),
            iov_len: part.len(),
        })
        .collect();
    let mut headers = headers(&parts);
    // SAFETY: the headers reference one element of `parts` each, and those the memory of `into`; all of it outlives the call.
    // A `VolatileSlice` covers writable memory that stays mapped for its lifetime and to which no reference exists.
    let received = unsafe { header::receive_batch(socket.as_fd(), &mut headers, libc::MSG_DONTWAIT) }?;
    Ok(headers
        .iter()
        .take(received)
        .map(|header| BatchedMessage {
            len: header.len as usize,
            truncated: header.header.flags & libc::MSG_TRUNC != 0,
        })
        .collect())
}

/// Sends each slice as one message, at most [`MOST`] of them, without blocking and without SIGPIPE. Returns the number
/// of messages that were sent.
///
/// # Errors
/// Errors of sendmmsg(2) at the first message.
pub fn send(socket: impl AsFd, messages: &[IoSlice<'_>]) -> Result<usize, Errno> {
    let parts: ArrayVec<libc::iovec, MOST> = messages
        .iter()
        .take(MOST)
        .map(|message| libc::iovec {
            iov_base: message.as_ptr().cast_mut().cast(),
            iov_len: message.len(),
        })
        .collect();
    let mut headers = headers(&parts);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the headers reference one element of `parts` each, and those the bytes of `messages`, which sendmmsg only
    // reads; all of it outlives the call.
    unsafe { header::send_batch(socket.as_fd(), &mut headers, flags) }
}

/// Returns one header for each element of `parts`. The headers point to `parts`, which must not be moved while they are
/// used.
fn headers(parts: &[libc::iovec]) -> ArrayVec<BatchedHeader, MOST> {
    parts
        .iter()
        .map(|part| MessageHeader::new(part, 1).batched())
        .collect()
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn receive_puts_each_message_into_its_own_slice() {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let messages = [&b"one"[..], b"three", b"two"].map(IoSlice::new);
        assert_eq!(send(&ours, &messages), Ok(3));

        let mut bytes = [[0; 4]; 4];
        let into = bytes.each_mut().map(|bytes| VolatileSlice::from(&mut bytes[..]));
        let whole = |len| BatchedMessage {
            len,
            truncated: false,
        };
        let cut = BatchedMessage {
            len: 4,
            truncated: true,
        };
        assert_eq!(receive(&theirs, &into).unwrap()[..], [whole(3), cut, whole(3)]);
        assert_eq!(receive(&theirs, &into), Err(Errno::AGAIN));
        assert_eq!((&bytes[1], &bytes[2][..3]), (b"thre", &b"two"[..]));

        // A child process of another test may hold a copy of the descriptor.
        rustix::net::shutdown(&theirs, rustix::net::Shutdown::Both).unwrap();
        assert_eq!(send(&ours, &messages), Err(Errno::PIPE));
    }

    #[test]
    fn full_queue_accepts_only_the_first_messages() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        let messages = [IoSlice::new(b"x"); MOST];
        let mut sent = 0;
        while let Ok(more) = send(&ours, &messages) {
            sent += more;
        }
        assert!(sent > 0, "a queue takes something");
        let mut bytes = [[0; 4]; MOST];
        let into = bytes.each_mut().map(|bytes| VolatileSlice::from(&mut bytes[..]));
        let mut received = 0;
        while let Ok(more) = receive(&theirs, &into) {
            received += more.len();
        }
        assert_eq!(received, sent);
    }
}
