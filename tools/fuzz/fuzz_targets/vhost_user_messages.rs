//! Fuzz target: the vhost-user device, with messages of a hostile front-end.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::vhost_user::front_end;

fuzz_target!(|script: &[u8]| front_end::run(script));
