//! A hostile front-end's messages against the vhost-user device.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::vhost_user::front_end;

fuzz_target!(|script: &[u8]| front_end::run(script));
