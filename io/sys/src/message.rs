//! Gathered sends and scattered receives (sendmsg(2), recvmsg(2)) on memory that another process may be changing.
//! Pointers are passed to the kernel, and no Rust reference to the bytes is created.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use arrayvec::ArrayVec;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::address::RawAddress;
use crate::header::{self, MessageHeader};
use crate::option::last_error;

/// Limit on the number of parts (iovecs) of one call (`UIO_MAXIOV`).
pub const MAX_PARTS: usize = 1024;

/// Result of a recvmsg(2): length, address and flags of the message that was received.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedMessage {
    /// Number of bytes of the message that were received.
    pub len: usize,
    /// Address of the sender; for an entry of the error queue, the destination of the datagram that was sent.
    pub address: Option<SocketAddr>,
    /// Number of bytes of control messages, at the front of the caller's control buffer.
    pub control_len: usize,
    /// True if the message was longer than the buffers, so that its end was discarded (`MSG_TRUNC`).
    pub truncated: bool,
}

/// Mode of [`receive`]: the queue that it reads, and whether the message is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvMode {
    /// Removes the next message from the receive queue.
    Next,
    /// Copies the next message and leaves it in the receive queue (`MSG_PEEK`).
    Peek,
    /// Removes the next entry of the error queue (`MSG_ERRQUEUE`).
    Error,
}

/// Parts of a message as iovecs. The array is filled in place, because moving it would copy all of its 16 KiB.
type Iovecs = ArrayVec<libc::iovec, MAX_PARTS>;

fn fill(iovecs: &mut Iovecs, parts: &[VolatileSlice<'_>]) -> Result<(), Errno> {
    if parts.len() > MAX_PARTS {
        return Err(Errno::MSGSIZE);
    }
    iovecs.extend(parts.iter().map(|part| libc::iovec {
        iov_base: part.ptr_guard_mut().as_ptr().cast(),
        iov_len: part.len(),
    }));
    Ok(())
}

/// Sends the parts as one datagram, or as the next bytes of a stream, without blocking and without SIGPIPE.
///
/// # Errors
/// Errors of sendmsg(2), and EMSGSIZE for more than [`MAX_PARTS`] parts.
pub fn send(
    socket: impl AsFd,
    parts: &[VolatileSlice<'_>],
    to: Option<SocketAddr>,
    control: &[u8],
) -> Result<usize, Errno> {
    let mut iovecs = Iovecs::new();
    fill(&mut iovecs, parts)?;
    // SAFETY: the iovecs reference the memory of `parts`. A `VolatileSlice` covers memory that stays mapped for its lifetime.
    unsafe { send_iovecs(socket.as_fd(), iovecs.as_ptr(), iovecs.len(), to, control) }
}

/// Sends slices of this process's own memory as one message, without blocking and without SIGPIPE.
///
/// # Errors
/// Errors of sendmsg(2).
pub fn send_slices(
    socket: impl AsFd,
    parts: &[IoSlice<'_>],
    to: Option<SocketAddr>,
    control: &[u8],
) -> Result<usize, Errno> {
    // SAFETY: `IoSlice` has the layout of `iovec`, as the standard library guarantees, and borrows the memory.
    unsafe { send_iovecs(socket.as_fd(), parts.as_ptr().cast(), parts.len(), to, control) }
}

/// Calls sendmsg(2) with `count` iovecs.
///
/// # Safety
/// `iovecs` points to `count` iovecs, each of which references memory that stays mapped until this function returns.
unsafe fn send_iovecs(
    socket: BorrowedFd<'_>,
    iovecs: *const libc::iovec,
    count: usize,
    to: Option<SocketAddr>,
    control: &[u8],
) -> Result<usize, Errno> {
    let mut name = to.map(RawAddress::from);
    let mut header = MessageHeader::new(iovecs, count);
    if let Some(name) = &mut name {
        header.name = name.bytes.as_mut_ptr().cast();
        header.name_len = name.len as libc::socklen_t;
    }
    if !control.is_empty() {
        header.control = control.as_ptr().cast_mut().cast();
        header.control_len = control.len();
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `header` references `name`, `control` and the memory of the iovecs, which outlives the call by this function's
    // contract; sendmsg only reads them.
    unsafe { header::send(socket, &header, flags) }
}

/// Receives a message, or bytes of a stream, into the parts in their order, without blocking.
///
/// # Errors
/// Errors of recvmsg(2), and EMSGSIZE for more than [`MAX_PARTS`] parts.
pub fn receive(
    socket: impl AsFd,
    into: &[VolatileSlice<'_>],
    control: &mut [u8],
    take: RecvMode,
) -> Result<ReceivedMessage, Errno> {
    let mut iovecs = Iovecs::new();
    fill(&mut iovecs, into)?;
    let mut name = RawAddress::EMPTY;
    let mut header = MessageHeader::new(iovecs.as_ptr(), iovecs.len());
    header.name = name.bytes.as_mut_ptr().cast();
    header.name_len = name.len as libc::socklen_t;
    if !control.is_empty() {
        header.control = control.as_mut_ptr().cast();
        header.control_len = control.len();
    }
    let flags = libc::MSG_DONTWAIT
        | match take {
            RecvMode::Next => 0,
            RecvMode::Peek => libc::MSG_PEEK,
            RecvMode::Error => libc::MSG_ERRQUEUE,
        };
    // SAFETY: `header` references `name`, `control` (both exclusively borrowed) and the memory of `into`, all of which
    // outlive the call and are writable. A `VolatileSlice` covers memory that stays mapped for its lifetime and to which
    // no reference exists.
    let len = unsafe { header::receive(socket.as_fd(), &mut header, flags) }?;
    name.len = header.name_len as usize;
    Ok(ReceivedMessage {
        len,
        address: name.decode(),
        control_len: header.control_len,
        truncated: header.flags & libc::MSG_TRUNC != 0,
    })
}

/// Reads from a file into `part` (read(2)), without a Rust reference to its bytes.
///
/// # Errors
/// Errors of read(2).
pub fn read(file: impl AsFd, part: &VolatileSlice<'_>) -> Result<usize, Errno> {
    let (at, room) = (part.ptr_guard_mut().as_ptr(), part.len());
    // SAFETY: `part` covers `room` writable bytes at `at` that stay mapped for its lifetime and to which no reference exists.
    let len = unsafe { libc::read(file.as_fd().as_raw_fd(), at.cast(), room) };
    usize::try_from(len).map_err(|_| last_error())
}

/// Writes the bytes of `part` to a file (write(2)), without a Rust reference to them.
///
/// # Errors
/// Errors of write(2).
pub fn write(file: impl AsFd, part: &VolatileSlice<'_>) -> Result<usize, Errno> {
    let (at, len) = (part.ptr_guard().as_ptr(), part.len());
    // SAFETY: `part` covers `len` readable bytes at `at` that stay mapped for its lifetime; the kernel copies them.
    let len = unsafe { libc::write(file.as_fd().as_raw_fd(), at.cast(), len) };
    usize::try_from(len).map_err(|_| last_error())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn message_is_sent_from_and_received_into_several_parts() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut out = *b"one two three";
        let (first, second) = out.split_at_mut(4);
        let parts = [VolatileSlice::from(first), VolatileSlice::from(second)];
        assert_eq!(send(&ours, &parts, None, &[]).unwrap(), 13);

        let (mut a, mut b) = ([0; 5], [0; 20]);
        let into = [VolatileSlice::from(&mut a[..]), VolatileSlice::from(&mut b[..])];
        let peeked = receive(&theirs, &into, &mut [], RecvMode::Peek).unwrap();
        let taken = receive(&theirs, &into, &mut [], RecvMode::Next).unwrap();
        assert_eq!((peeked.len, taken.len), (13, 13));
        assert_eq!((&a, &b[..8]), (b"one t", &b"wo three"[..]));
        assert_eq!(
            receive(&theirs, &[], &mut [], RecvMode::Next).unwrap_err(),
            Errno::AGAIN
        );
    }

    #[test]
    fn message_is_sent_from_several_slices() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        let parts = [IoSlice::new(b"one "), IoSlice::new(b"two")];
        assert_eq!(send_slices(&socket, &parts, Some(to), &[]), Ok(7));
        let mut room = [0; 9];
        assert_eq!(socket.recv(&mut room).unwrap(), 7);
        assert_eq!(&room[..7], b"one two");
    }

    #[test]
    fn receive_reports_a_truncated_datagram() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        let mut bytes = [1, 2, 3];
        assert_eq!(
            send(&socket, &[VolatileSlice::from(&mut bytes[..])], Some(to), &[]).unwrap(),
            3
        );
        let mut room = [0; 2];
        let got = receive(
            &socket,
            &[VolatileSlice::from(&mut room[..])],
            &mut [],
            RecvMode::Next,
        )
        .unwrap();
        assert_eq!((got.len, got.truncated, got.address), (2, true, Some(to)));
    }

    #[test]
    fn send_and_receive_refuse_too_many_parts() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut byte = [0];
        let parts = vec![VolatileSlice::from(&mut byte[..]); MAX_PARTS + 1];
        assert_eq!(send(&ours, &parts, None, &[]).unwrap_err(), Errno::MSGSIZE);
        assert_eq!(
            receive(&ours, &parts, &mut [], RecvMode::Next).unwrap_err(),
            Errno::MSGSIZE
        );
    }
}
