//! Model checking of all interleavings of a driver and a device that the memory model allows (`--cfg loom`).

#![cfg(loom)]
// An unexpected error fails the test.
#![allow(clippy::unwrap_used)]

mod memory;
mod orderings;
mod sleep;
