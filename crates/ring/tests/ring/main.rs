//! The ring from outside: both sides against each other, against hostile ones, and against others' code.

// A test has no better answer to an error.
#![allow(clippy::unwrap_used)]

mod cases;
mod conversation;
mod doorbell;
mod forge;
mod ghost;
mod guest;
mod hostile;
mod hostile_device;
mod hostile_driver;
mod interop;
mod merge;
mod model;
mod refused_buffers;
mod refused_chains;
mod refused_indices;
mod refused_layouts;
mod refused_returns;
#[path = "../../../../fuzz/replay.rs"]
mod replay;
mod script;
mod shared;
mod threads;
mod world;
