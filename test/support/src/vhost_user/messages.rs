//! Encoder of vhost-user messages.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Encodes a message with this request code, flags and body.
pub fn message(code: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(body.len()).unwrap();
    let mut bytes = [code, flags, size].map(u32::to_ne_bytes).concat();
    bytes.extend_from_slice(body);
    bytes
}

pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Encodes two 32-bit numbers.
pub fn halves(low: u32, high: u32) -> Vec<u8> {
    [low, high].map(u32::to_ne_bytes).concat()
}

/// Sends bytes and descriptors, as many bytes as the socket has room for.
pub fn send(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

/// Returns a memory file (memfd) with `bytes` zeros.
pub fn memory(bytes: u64) -> OwnedFd {
    let file = memfd_create("some", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes).unwrap();
    file
}
