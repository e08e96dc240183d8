//! Exchange of whole frames by function calls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Guest's end of a link whose frames the program writes and reads, each with a virtio-net header in front.
///
/// The shape is that of a VMM's back-end trait: frames as they are in the guest's buffers, and a descriptor to poll. The
/// [`header`](Self::HEADER_LEN) is that of virtio 1 (`struct virtio_net_hdr_v1`, 12 bytes, virtio 1.2 section 5.1.6).
///
/// The device of the VMM may offer the features [`Self::FEATURES`]: frames of the guest may have partial checksums, and TCP
/// segments of up to 64 KiB that are to be segmented. Frames to the guest have complete checksums, and are no longer than the
/// MTU.
#[derive(Debug)]
pub struct FramePort {
    pub(crate) socket: OwnedFd,
    /// Size of the longest frame to the guest: the MTU and an Ethernet header.
    pub(crate) most: usize,
}

/// Features of virtio-net (virtio 1.2, section 5.1.3).
const F_CSUM: u64 = 1 << 0;
const F_MTU: u64 = 1 << 3;
const F_MAC: u64 = 1 << 5;
const F_HOST_TSO4: u64 = 1 << 11;
const F_HOST_TSO6: u64 = 1 << 12;
const F_HOST_ECN: u64 = 1 << 13;

/// The field `gso_type` of the header.
const GSO_TYPE: usize = 1;
/// Values of `gso_type`: TCP over IPv4 and IPv6, and a flag of both.
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_ECN: u8 = 0x80;

/// Header of a frame to the guest: complete, and in one buffer (`num_buffers`).
const HEADER: [u8; FramePort::HEADER_LEN] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

impl FramePort {
    /// Length in bytes of the virtio-net header in front of each frame.
    pub const HEADER_LEN: usize = 12;

    /// Features of virtio-net that the VMM's device may offer: VIRTIO_NET_F_CSUM, MTU, MAC, HOST_TSO4, HOST_TSO6 and HOST_ECN.
    pub const FEATURES: u64 = F_CSUM | F_MTU | F_MAC | F_HOST_TSO4 | F_HOST_TSO6 | F_HOST_ECN;

    /// Writes a frame of the guest, which begins with a virtio-net header. The function does not wait.
    ///
    /// # Errors
    /// `WouldBlock`: the engine has not read earlier frames yet; the descriptor becomes writable when there is room.
    /// `InvalidInput`: the frame is shorter than the header and an Ethernet header, or is to be segmented otherwise than TCP.
    /// `BrokenPipe`: the network has ended.
    pub fn write_frame(&mut self, frame: &[u8]) -> io::Result<()> {
        let Some((header, frame)) = frame.split_at_checked(Self::HEADER_LEN) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // The engine takes a TCP segment of any length, and completes no checksum that was not transferred over a network.
        let is_tcp = [GSO_NONE, GSO_TCPV4, GSO_TCPV6].contains(&(header[GSO_TYPE] & !GSO_ECN));
        if frame.len() < ETHERNET || !is_tcp {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        loop {
            match send(&self.socket, frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                sent => return sent.map(drop).map_err(io::Error::from),
            }
        }
    }

    /// Reads a frame to the guest into `buffer`, with a virtio-net header in front. Returns the number of bytes, with the header.
    /// The function does not wait.
    ///
    /// # Errors
    /// `WouldBlock`: there is no frame; the descriptor becomes readable when there is one. `InvalidInput`: the buffer is shorter
    /// than [`Self::buffer_len`]. `BrokenPipe`: the network has ended.
    pub fn read_frame(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.len() < self.buffer_len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (header, frame) = buffer.split_at_mut(Self::HEADER_LEN);
        loop {
            match recv(&self.socket, &mut *frame, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok((len, _)) => {
                    header.copy_from_slice(&HEADER);
                    return Ok(Self::HEADER_LEN + len);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the least length in bytes of a buffer for [`Self::read_frame`]: the header and the longest frame.
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        Self::HEADER_LEN + self.most
    }
}

/// Length in bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;

/// The descriptor to poll: readable while there is a frame to the guest, writable while a frame can be written.
impl AsFd for FramePort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
