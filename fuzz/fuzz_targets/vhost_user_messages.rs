//! A hostile front-end's messages against the vhost-user device.

#![no_main]
// A fuzz target has no better answer to an error.
#![allow(clippy::unwrap_used)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/vhost-user/tests/vhost_user/front_end.rs"]
mod front_end;
#[path = "../../crates/vhost-user/tests/vhost_user/messages.rs"]
mod messages;
#[path = "../../crates/ring/tests/ring/script.rs"]
mod script;

fuzz_target!(|script: &[u8]| front_end::play(script));
