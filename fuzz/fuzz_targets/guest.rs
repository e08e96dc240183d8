//! A hostile device against the guest library.

#![no_main]
// A fuzz target has no better answer to an error.
#![allow(clippy::unwrap_used)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/ring/tests/ring/ghost.rs"]
mod ghost;
#[path = "../../crates/ring/tests/ring/model.rs"]
mod model;
#[path = "../../crates/guest/tests/hostile/play.rs"]
mod play;
#[path = "../../crates/ring/tests/ring/script.rs"]
mod script;

fuzz_target!(|script: &[u8]| play::play(script));
