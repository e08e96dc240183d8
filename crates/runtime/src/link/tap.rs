//! The tap link: a namespace's interface.
//!
//! A read takes one frame, a write delivers one and runs the guest's receive path before it returns. Segmentation and
//! checksums are negotiated by the supervisor, which opens the tap. The kernel copies at both, so that all memory here
//! is private to us.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use pontoon_engine::Limits;
use pontoon_sys::tun::TapOffload;

mod receive;
mod transmit;

pub use receive::{BURST, Burst, Receiver, Rest, Until};
pub use transmit::{Reservation, Transmitter};

/// Bytes of the largest IP packet, segmented or not.
const MAX_PACKET: usize = 65_535;

/// Takes over a tap: its two halves. `mtu` is the interface's.
///
/// # Errors
/// The descriptor cannot be made non-blocking.
pub fn open(fd: OwnedFd, offload: TapOffload, mtu: u16) -> io::Result<(Receiver, Transmitter)> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    let limits = Limits {
        mtu: mtu.into(),
        max_gso: MAX_PACKET,
        tso4: offload.tso,
        tso6: offload.tso,
        uso: offload.uso,
    };
    let queue = Queue(Arc::new(fd));
    let receiver = Receiver::new(queue.clone(), offload.vnet_hdr);
    Ok((receiver, Transmitter::new(queue, offload.vnet_hdr, limits)))
}

/// The descriptor, which both halves use.
#[derive(Clone, Debug)]
struct Queue(Arc<OwnedFd>);

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests;
