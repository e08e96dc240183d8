//! A hostile device against the ring's driver side.

#![no_main]
// A fuzz target has no better answer to an error.
#![allow(clippy::unwrap_used)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/ring/tests/ring/ghost.rs"]
mod ghost;
#[path = "../../crates/ring/tests/ring/hostile_device.rs"]
mod hostile_device;
#[path = "../../crates/ring/tests/ring/model.rs"]
mod model;
#[path = "../../crates/ring/tests/ring/script.rs"]
mod script;

fuzz_target!(|script: &[u8]| hostile_device::play(script));
