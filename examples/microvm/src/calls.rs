//! A network interface without shared virtqueues: the guest calls the VMM for each frame, and the VMM makes a system
//! call.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use pontoon_microvm_abi::{PORT_READ, PORT_WAIT, PORT_WRITE, READ, READ_LEN, WRITTEN};

/// Length of the longest frame in bytes.
const FRAME: usize = 1514;

/// The VMM's side of the network interface: one end of a packet link to the engine.
#[derive(Debug)]
pub(crate) struct Calls {
    socket: OwnedFd,
    memory: GuestMemoryMmap,
}

impl Calls {
    pub(crate) fn new(socket: OwnedFd, memory: GuestMemoryMmap) -> Self {
        Self { socket, memory }
    }

    /// Handles the guest's write to an I/O port; unknown ports are ignored.
    pub(crate) fn call(&self, port: u16, value: u32) -> Result<()> {
        match port {
            PORT_WRITE => self.write(value),
            PORT_READ => self.read(),
            PORT_WAIT => self.wait(value),
            _ => Ok(()),
        }
    }

    /// Sends the guest's frame to the engine. The frame is lost if the engine has no room for it.
    fn write(&self, len: u32) -> Result<()> {
        let mut frame = [0; FRAME];
        let frame = &mut frame[..FRAME.min(len as usize)];
        self.memory.read_slice(frame, GuestAddress(WRITTEN))?;
        match send(&self.socket, frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&self) -> Result<()> {
        let mut frame = [0; FRAME];
        let len = match recv(&self.socket, &mut frame[..], RecvFlags::DONTWAIT) {
            Ok((len, _)) => len,
            Err(Errno::AGAIN) => 0,
            Err(error) => return Err(error.into()),
        };
        self.memory.write_slice(&frame[..len], GuestAddress(READ))?;
        self.memory.write_obj(len as u32, GuestAddress(READ_LEN))?;
        Ok(())
    }

    fn wait(&self, microseconds: u32) -> Result<()> {
        let timeout = Timespec::try_from(Duration::from_micros(microseconds.into()))?;
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
