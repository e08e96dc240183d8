//! A hostile guest's rings and memory against the vhost-user device.

#![no_main]
// A fuzz target has no better answer to an error.
#![allow(clippy::unwrap_used)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/vhost-user/tests/vhost_user/guest.rs"]
mod guest;
#[path = "../../crates/vhost-user/tests/vhost_user/messages.rs"]
mod messages;
#[path = "../../crates/ring/tests/ring/script.rs"]
mod script;

fuzz_target!(|script: &[u8]| guest::play(script));
