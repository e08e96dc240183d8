//! An engine between a hostile guest and a host that answers what it likes.

#![no_main]
// A fuzz target has no better answer to an error.
#![allow(clippy::unwrap_used)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/testkit/tests/hostile/engine.rs"]
mod engine;
#[path = "../../crates/testkit/tests/hostile/guest.rs"]
mod guest;
#[path = "../../crates/testkit/tests/hostile/host.rs"]
mod host;
#[path = "../../crates/ring/tests/ring/script.rs"]
mod script;

fuzz_target!(|script: &[u8]| engine::play(script));
