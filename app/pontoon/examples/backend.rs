//! A VMM's back-end for its virtio-net device, by frames that are written and read: the trait is that of libkrun
//! (`src/devices/src/virtio/net/backend.rs`), whose device copies frames between a guest's buffers and a back-end.
//!
//! `main` takes the place of the device: it sends an ARP request for the gateway's address, and receives the reply.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use pontoon::{FramePort, Network};
use rustix::event::{PollFd, PollFlags, poll};

/// Reason for which no frame was read.
#[derive(Debug)]
pub enum ReadError {
    /// There is no frame.
    NothingRead,
    /// The back-end has failed.
    Internal(io::Error),
}

/// Reason for which a frame was not written.
#[derive(Debug)]
pub enum WriteError {
    /// There is no room: the device tries again when the descriptor is writable.
    NothingWritten,
    /// The network has ended.
    ProcessNotRunning,
    /// The frame was refused.
    Internal(io::Error),
}

/// Back-end of a virtio-net device. Frames have a virtio-net header of 12 bytes in front.
pub trait NetBackend {
    /// Reads a frame to the guest, and returns its length with the header.
    fn read_frame(&mut self, buf: &mut [u8]) -> Result<usize, ReadError>;
    /// Writes a frame of the guest, whose header has `hdr_len` bytes.
    fn write_frame(&mut self, hdr_len: usize, buf: &mut [u8]) -> Result<(), WriteError>;
    /// Returns true if a frame was written in part.
    fn has_unfinished_write(&self) -> bool;
    /// Writes the rest of a frame.
    fn try_finish_write(&mut self, hdr_len: usize, buf: &[u8]) -> Result<(), WriteError>;
    /// Returns the descriptor to poll.
    fn raw_socket_fd(&self) -> RawFd;
}

/// The port of a network as a back-end.
pub struct Pontoon(pub FramePort);

impl NetBackend for Pontoon {
    fn read_frame(&mut self, buf: &mut [u8]) -> Result<usize, ReadError> {
        self.0.read_frame(buf).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => ReadError::NothingRead,
            _ => ReadError::Internal(error),
        })
    }

    fn write_frame(&mut self, hdr_len: usize, buf: &mut [u8]) -> Result<(), WriteError> {
        debug_assert_eq!(hdr_len, FramePort::HEADER_LEN);
        self.0.write_frame(buf).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => WriteError::NothingWritten,
            ErrorKind::BrokenPipe => WriteError::ProcessNotRunning,
            _ => WriteError::Internal(error),
        })
    }

    fn has_unfinished_write(&self) -> bool {
        false
    }

    fn try_finish_write(&mut self, _hdr_len: usize, _buf: &[u8]) -> Result<(), WriteError> {
        Ok(())
    }

    fn raw_socket_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (network, port) = Network::builder().frames()?;
    let own = network.addresses().ipv4.ok_or("the guest has no IPv4")?;
    let mut backend = Pontoon(port);

    let mut frame = vec![0; FramePort::HEADER_LEN];
    frame.extend([0xff; 6]);
    frame.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1]);
    frame.extend(own.guest.octets());
    frame.extend([0; 6]);
    frame.extend(own.gateway.octets());
    let failed = |error| format!("{error:?}");
    backend
        .write_frame(FramePort::HEADER_LEN, &mut frame)
        .map_err(failed)?;
    let mut buffer = vec![0; backend.0.buffer_len()];
    loop {
        poll(&mut [PollFd::new(&backend.0, PollFlags::IN)], None)?;
        let frame = match backend.read_frame(&mut buffer) {
            Ok(len) => &buffer[FramePort::HEADER_LEN..len],
            Err(ReadError::NothingRead) => continue,
            Err(ReadError::Internal(error)) => return Err(error.into()),
        };
        if frame[12..14] == [8, 6] && frame[20..22] == [0, 2] {
            assert_eq!(frame[28..32], own.gateway.octets());
            break;
        }
    }
    network.stop()?;
    Ok(())
}
