//! A frame and its offload metadata, against the parser.

#![no_main]
// A fuzz target has no better answer to an error.
#![allow(clippy::unwrap_used)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/testkit/tests/hostile/frame.rs"]
mod frame;

fuzz_target!(|bytes: &[u8]| frame::play(bytes));
