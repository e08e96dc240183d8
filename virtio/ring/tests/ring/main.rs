//! Tests of the public interface: the driver with the device, each side with a hostile peer, and with rust-vmm's code.

// An unexpected error fails the test.
#![allow(clippy::unwrap_used)]

mod conversation;
mod forge;
mod guest;
mod hostile;
mod interop;
mod merge;
mod refused_buffers;
mod refused_chains;
mod refused_indices;
mod refused_layouts;
mod refused_returns;
mod shared;
mod threads;
mod world;
