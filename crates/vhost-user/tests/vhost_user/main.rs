//! The device against a driver that is not its own, in one process.

// A test has no better answer to an error.
#![allow(clippy::unwrap_used)]

mod carries;
mod control;
mod device;
mod front_end;
mod fuzzed;
mod guest;
mod hostile;
mod in_process;
mod library;
mod messages;
#[path = "../../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../ring/tests/ring/script.rs"]
mod script;
mod threads;
mod wakes;
