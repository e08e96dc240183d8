//! Messages with file descriptors between processes of this program: `AF_UNIX` sockets of type `SOCK_SEQPACKET`.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::option;

/// Limit on the number of descriptors in one message (the kernel's limit, `SCM_MAX_FD`, is 253).
pub const MAX_DESCRIPTORS: usize = 64;

const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// A received message and the descriptors in it.
#[derive(Debug)]
pub struct SeqpacketMessage {
    /// Number of bytes received, at the front of the caller's buffer.
    pub len: usize,
    /// File descriptors that the message contained (`SCM_RIGHTS`), close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

/// Creates two connected sockets, close-on-exec and blocking.
///
/// # Errors
/// Errors of socketpair(2): no free descriptor or memory.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Creates two connected sockets, the second of which is for a process that may be compromised; the first socket
/// refuses descriptors from it.
///
/// Descriptors from that process would be a risk: closing a received descriptor can block for as long as the sender
/// chose (a TCP connection with unsent data and `SO_LINGER`), and descriptors in flight count against the user's limit.
/// The option (`SO_PASSRIGHTS`) exists since Linux 6.16; on older kernels the first socket receives descriptors.
///
/// # Errors
/// Those of [`pair`].
pub fn pair_with_untrusted() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = pair()?;
    match refuse_descriptors(&ours) {
        Ok(()) | Err(Errno::NOPROTOOPT) => Ok((ours, theirs)),
        Err(error) => Err(error.into()),
    }
}

/// Returns true if the kernel supports sockets that refuse descriptors (`SO_PASSRIGHTS`).
#[must_use]
pub fn refuses_descriptors() -> bool {
    pair().is_ok_and(|(ours, _)| refuse_descriptors(&ours).is_ok())
}

fn refuse_descriptors(socket: impl AsFd) -> Result<(), Errno> {
    option::set_int(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, 0)
}

/// Socket option that permits a Unix socket to receive descriptors (asm-generic/socket.h).
const SO_PASSRIGHTS: i32 = 83;

/// Sends a message. An empty message is refused, because the receiver could not distinguish it from a closed socket.
///
/// # Errors
/// `InvalidInput`: `bytes` is empty, or there are more descriptors than [`MAX_DESCRIPTORS`]. `BrokenPipe`: the other
/// socket is closed. `WouldBlock`: the socket is non-blocking and its send buffer is full. EMSGSIZE: the message is
/// longer than the send buffer.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.is_empty() || descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::io::retry_on_intr(|| {
        sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Receives a message; `None` if the other socket is closed.
///
/// # Errors
/// `InvalidData`: the message is longer than `buffer`, or has more descriptors than [`MAX_DESCRIPTORS`] or than this
/// process can open. `WouldBlock`: the socket is non-blocking and no message has arrived.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<SeqpacketMessage>> {
    let (message, flags) = receive_any(socket, buffer)?;
    if flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        Err(truncated())
    } else {
        Ok(message)
    }
}

/// Receives a message. If this process cannot open all of its descriptors, the last ones are dropped.
///
/// # Errors
/// `InvalidData`: the message is longer than `buffer`. `WouldBlock`: the socket is non-blocking and no message has
/// arrived.
pub fn receive_what_fits(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<SeqpacketMessage>> {
    let (message, flags) = receive_any(socket, buffer)?;
    if flags.intersects(ReturnFlags::TRUNC) {
        Err(truncated())
    } else {
        Ok(message)
    }
}

fn truncated() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the message is longer than the buffer or has too many descriptors",
    )
}

fn receive_any(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(Option<SeqpacketMessage>, ReturnFlags)> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(
            &socket,
            &mut [IoSliceMut::new(buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let message = (received.bytes > 0).then_some(SeqpacketMessage {
        len: received.bytes,
        descriptors,
    });
    Ok((message, received.flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_transfers_bytes_and_descriptors() {
        let (ours, theirs) = pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        send(&ours, b"hello", &[write.as_fd()]).unwrap();
        send(&ours, b"again", &[]).unwrap();

        let mut buffer = [0; 16];
        let message = receive(&theirs, &mut buffer).unwrap().unwrap();
        assert_eq!(
            (&buffer[..message.len], message.descriptors.len()),
            (&b"hello"[..], 1)
        );
        rustix::io::write(&message.descriptors[0], b"x").unwrap();
        assert_eq!(rustix::io::read(&read, &mut buffer).unwrap(), 1);

        let message = receive(&theirs, &mut buffer).unwrap().unwrap();
        assert_eq!(
            (&buffer[..message.len], message.descriptors.len()),
            (&b"again"[..], 0)
        );
    }

    #[test]
    fn untrusted_process_cannot_send_descriptors() {
        let (ours, theirs) = pair_with_untrusted().unwrap();
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let mut buffer = [0; 16];
        // Descriptors in the other direction, to the untrusted process, are allowed.
        send(&ours, b"take", &[read.as_fd()]).unwrap();
        let message = receive(&theirs, &mut buffer).unwrap().unwrap();
        assert_eq!(message.descriptors.len(), 1);
        send(&theirs, b"bytes", &[]).unwrap();
        assert_eq!(receive(&ours, &mut buffer).unwrap().unwrap().len, 5);

        let mut refuses = [0; 4];
        match option::get(&ours, libc::SOL_SOCKET, SO_PASSRIGHTS, &mut refuses) {
            Ok(_) => {
                let error = send(&theirs, b"take", &[read.as_fd()]).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            }
            Err(error) => assert_eq!(error, Errno::NOPROTOOPT),
        }
    }

    #[test]
    fn receive_returns_none_after_a_close() {
        let (ours, theirs) = pair().unwrap();
        // A child process of another test may hold a copy of the descriptor.
        rustix::net::shutdown(&ours, rustix::net::Shutdown::Both).unwrap();
        assert!(receive(&theirs, &mut [0; 16]).unwrap().is_none());
        assert_eq!(
            send(&theirs, b"x", &[]).unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
    }

    #[test]
    fn messages_that_do_not_fit_are_refused() {
        let (ours, theirs) = pair().unwrap();
        assert_eq!(
            send(&ours, b"", &[]).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        send(&ours, b"four", &[]).unwrap();
        assert_eq!(
            receive(&theirs, &mut [0; 3]).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
