//! All interleavings of a driver and a device, and all that the memory model lets them see (`--cfg loom`).

#![cfg(loom)]
// A test has no better answer to an error.
#![allow(clippy::unwrap_used)]

mod memory;
mod orderings;
mod sleep;
