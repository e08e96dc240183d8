//! Exchange of frames by calls.

use core::ffi::{c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Mutex;

use pontoon::FramePort;

use crate::call::{Failure, call};
use crate::network::{lock, network, pontoon_network};

/// Length in bytes of the virtio-net header in front of each frame (struct virtio_net_hdr_v1).
pub const PONTOON_FRAME_HEADER: usize = 12;
const _: () = assert!(PONTOON_FRAME_HEADER == FramePort::HEADER_LEN);

/// The guest's end of a link, and a buffer for one frame to the guest.
pub(crate) struct Frames {
    port: FramePort,
    buffer: Vec<u8>,
}

impl Frames {
    pub(crate) fn new(port: FramePort) -> Self {
        let buffer = vec![0; port.buffer_len()];
        Self { port, buffer }
    }
}

/// Returns the link of a network that was started with frames by calls.
fn frames(network: &pontoon_network) -> Result<&Mutex<Frames>, Failure> {
    let frames = network.frames.as_ref();
    frames.ok_or_else(|| Failure::invalid("the guest's frames are not exchanged by calls"))
}

/// Returns the descriptor of the frames of a network from pontoon_network_frames, to be polled: readable while there is a frame to
/// the guest, writable while one can be written. It belongs to the network.
///
/// # Safety
/// `network` is from `pontoon_network_frames`, and is not stopped during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_frame_fd(network: *const pontoon_network) -> c_int {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let network = unsafe { self::network(network)? };
        Ok(lock(frames(network)?)?.port.as_fd().as_raw_fd())
    })
}

/// Writes a frame of the guest, which begins with a virtio-net header of PONTOON_FRAME_HEADER bytes. Its checksum may be partial,
/// and it may be a TCP segment of up to 64 KiB that is to be segmented (VIRTIO_NET_F_CSUM, HOST_TSO4, HOST_TSO6, HOST_ECN).
///
/// Returns 0, or an error: PONTOON_ERROR_AGAIN if there is no room.
///
/// # Safety
/// `network` is from `pontoon_network_frames`, and is not stopped during the call; `len` bytes at `frame` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_write_frame(
    network: *const pontoon_network,
    frame: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let network = unsafe { self::network(network)? };
        if frame.is_null() || isize::try_from(len).is_err() {
            return Err(Failure::invalid("the frame is null or too long"));
        }
        // SAFETY: the caller promises that the bytes can be read; they are bytes, and the length fits `isize`.
        let frame = unsafe { core::slice::from_raw_parts(frame.cast::<u8>(), len) };
        lock(frames(network)?)?.port.write_frame(frame)?;
        Ok(0)
    })
}

/// Reads a frame to the guest into `buffer`, behind a virtio-net header. Its checksum is complete, and it is no longer than the
/// MTU: a buffer of the MTU, 14 and PONTOON_FRAME_HEADER bytes suffices, and a shorter one is refused.
///
/// Returns the number of bytes with the header, or an error: PONTOON_ERROR_AGAIN if there is no frame.
///
/// # Safety
/// `network` is from `pontoon_network_frames`, and is not stopped during the call; `size` bytes at `buffer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_read_frame(
    network: *const pontoon_network,
    buffer: *mut c_void,
    size: usize,
) -> isize {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let network = unsafe { self::network(network)? };
        if buffer.is_null() || isize::try_from(size).is_err() {
            return Err(Failure::invalid("the buffer is null or too long"));
        }
        let mut frames = lock(frames(network)?)?;
        let Frames { port, buffer: own } = &mut *frames;
        if size < own.len() {
            return Err(Failure::invalid(format!(
                "the buffer is shorter than {} bytes",
                own.len()
            )));
        }
        // The program's memory may be uninitialized, and no slice may refer to such memory.
        let len = port.read_frame(own)?;
        // SAFETY: the caller promises that the buffer can be written, and it is not shorter than the frame.
        unsafe { buffer.cast::<u8>().copy_from_nonoverlapping(own.as_ptr(), len) };
        Ok(Read(isize::try_from(len).unwrap_or(isize::MAX)))
    })
    .0
}

/// Result of a read: a length or an error.
#[derive(Default)]
struct Read(isize);

impl From<c_int> for Read {
    fn from(code: c_int) -> Self {
        Self(code as isize)
    }
}
