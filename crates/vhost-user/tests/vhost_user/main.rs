//! The device against a driver that is not its own, in one process.

// A test has no better answer to an error.
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
