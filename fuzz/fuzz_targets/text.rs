//! What is written: messages between supervisor and engine, options, the host's resolvers.

#![no_main]
// A fuzz target has no better answer to an error.
#![allow(clippy::unwrap_used)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/supervisor/tests/text/play.rs"]
mod play;

fuzz_target!(|bytes: &[u8]| play::play(bytes));
