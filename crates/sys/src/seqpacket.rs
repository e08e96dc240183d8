//! Messages with descriptors between our own processes: `AF_UNIX`, `SOCK_SEQPACKET`.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::option;

/// Descriptors that one message may carry (the kernel's limit is 253).
pub const MAX_DESCRIPTORS: usize = 64;

const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// Bytes of it, at the front of the caller's buffer.
    pub len: usize,
    /// Descriptors that came with it, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

/// Two connected ends, close-on-exec, blocking.
///
/// # Errors
/// Out of descriptors or memory.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// A pair for a process of ours that might be taken over, which has the second end: nothing but bytes comes back from it.
///
/// Closing a descriptor can take as long as whoever sent it likes (a connection with something unsent and `SO_LINGER`), and
/// descriptors under way are counted against the user: so the first end refuses them (`SO_PASSRIGHTS`, Linux 6.16). On older
/// kernels it does not.
///
/// # Errors
/// As [`pair`].
pub fn pair_with_suspect() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = pair()?;
    match option::set_int(&ours, libc::SOL_SOCKET, SO_PASSRIGHTS, 0) {
        Ok(()) | Err(Errno::NOPROTOOPT) => Ok((ours, theirs)),
        Err(error) => Err(error.into()),
    }
}

/// Whether a socket is sent descriptors (asm-generic/socket.h).
const SO_PASSRIGHTS: i32 = 83;

/// Sends one message. An empty one could not be told from the end and is refused.
///
/// # Errors
/// `InvalidInput`: empty, or more than [`MAX_DESCRIPTORS`]. `BrokenPipe`: the other end is closed. `WouldBlock`.
/// EMSGSIZE: longer than the send buffer.
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

/// Receives one message; `None` when the other end is closed.
///
/// # Errors
/// `InvalidData`: longer than `buffer`, or with more descriptors than [`MAX_DESCRIPTORS`]. `WouldBlock`.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<Message>> {
    let (message, flags) = receive_any(socket, buffer)?;
    match flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        true => Err(cut()),
        false => Ok(message),
    }
}

/// The same, but a message comes without those of its descriptors that this process has no room for: the last ones.
///
/// # Errors
/// `InvalidData`: longer than `buffer`. `WouldBlock`.
pub fn receive_what_fits(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<Message>> {
    let (message, flags) = receive_any(socket, buffer)?;
    match flags.intersects(ReturnFlags::TRUNC) {
        true => Err(cut()),
        false => Ok(message),
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "message longer than its buffer")
}

fn receive_any(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(Option<Message>, ReturnFlags)> {
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
    let message = (received.bytes > 0).then_some(Message {
        len: received.bytes,
        descriptors,
    });
    Ok((message, received.flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_bytes_and_descriptors() {
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
    fn a_suspect_sends_bytes_alone() {
        let (ours, theirs) = pair_with_suspect().unwrap();
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let mut buffer = [0; 16];
        // Downwards they go.
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
    fn tells_the_end() {
        let (ours, theirs) = pair().unwrap();
        drop(ours);
        assert!(receive(&theirs, &mut [0; 16]).unwrap().is_none());
        assert_eq!(
            send(&theirs, b"x", &[]).unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
    }

    #[test]
    fn refuses_what_does_not_fit() {
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
