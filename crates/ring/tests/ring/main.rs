//! The ring from outside: both sides against each other, against hostile ones, and against others' code.

// A test has no better answer to an error.
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
