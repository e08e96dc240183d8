//! Tests of the device with the driver of `pontoon-vm-peer`, in one process.

// An unexpected error fails the test.
#![allow(clippy::unwrap_used)]

mod carries;
mod control;
mod device;
mod fuzzed;
mod hostile;
mod in_process;
mod library;
mod threads;
mod wakes;
