//! What is at the other end of a vhost-user socket: the front-end of a VMM and the virtio-net driver of its guest, in
//! one process and at native speed.
//!
//! Messages are rust-vmm's `vhost` front-end's, rings are `pontoon-ring`'s driver side. Segmentation, checksums,
//! mergeable buffers, event indices and indirect descriptors are used as they were negotiated. For tests of how a device
//! stands a hostile guest, all of the guest's memory and the places of its rings are at hand ([`Machine::memory`],
//! [`Queue::layout`]), as are its file ([`Machine::file`]) and the front-end itself ([`Machine::frontend`]).

mod bridge;
mod machine;
mod map;
mod queue;
mod rx;
mod tx;

pub use bridge::bridge_tap;
pub use machine::{Machine, Options, QueuePair};
pub use queue::Queue;
pub use rx::{Received, Rx};
pub use tx::{Tx, TxLayout};

use std::io;

use pontoon_ring::{LayoutError, driver};
use pontoon_wire::vnet;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The front-end's session.
    #[error("the session: {0}")]
    Session(#[from] vhost::Error),
    /// A system call.
    #[error(transparent)]
    System(#[from] io::Error),
    /// A ring cannot be where it is said to be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The device broke the ring's protocol.
    #[error("the device: {0}")]
    Device(#[from] driver::Error),
    /// The device sent offload metadata that means nothing.
    #[error("the device: {0}")]
    Header(#[from] vnet::Malformed),
    /// The device showed a part of a frame.
    #[error("the device has shown {shown} of a frame's {all} buffers")]
    Partial {
        /// Buffers shown.
        shown: u16,
        /// Buffers that the frame says it has.
        all: u16,
    },
}
