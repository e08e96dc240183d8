//! What is sent to a relay, and what is written into its configuration.

#![no_main]
// A fuzz target has no better answer to an error.
#![allow(clippy::unwrap_used)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/relay/tests/hostile/play.rs"]
mod play;

fuzz_target!(|bytes: &[u8]| play::play(bytes));
