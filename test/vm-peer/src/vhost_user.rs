//! A vhost-user front-end with a virtio-net driver, in one process and at native speed.
//!
//! The front-end is that of rust-vmm's crate `vhost`; the driver side of the rings is `pontoon-ring`. Segmentation,
//! checksums, mergeable buffers, event indices and indirect descriptors are used as negotiated. Tests with a hostile
//! guest have access to all memory of the guest and to the addresses of its rings ([`Machine::memory`],
//! [`Queue::layout`]), to the file of the memory ([`Machine::file`]), and to the front-end ([`Machine::frontend`]).

mod bridge;
mod machine;
mod map;
mod queue;
mod rx;
mod tx;

pub use bridge::{bridge_queues, bridge_tap, configure_tap};
pub use machine::{GuestQueues, Machine, Options, QueuePair};
pub use queue::Queue;
pub use rx::{Received, Rx};
pub use tx::{Tx, TxLayout};

use std::io;

use pontoon_ring::{LayoutError, driver};
use pontoon_wire::vnet;

/// An error of the front-end or the driver.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The vhost-user session with the device failed.
    #[error("vhost-user session: {0}")]
    Session(#[from] vhost::Error),
    /// A system call of the front-end failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The address of a ring is invalid.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The device violated the ring protocol.
    #[error("device protocol error: {0}")]
    Device(#[from] driver::VirtqueueError),
    /// The device sent invalid offload metadata.
    #[error("device protocol error: {0}")]
    Header(#[from] vnet::VnetHeaderError),
    /// The device published a frame without all of its buffers.
    #[error("the device published {shown} of a frame's {all} buffers")]
    Partial {
        /// Number of buffers that the device published.
        shown: u16,
        /// Number of buffers according to `num_buffers` of the frame's header.
        all: u16,
    },
}
