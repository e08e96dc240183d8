//! A hostile guest's rings and memory against the vhost-user device.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::vhost_user::guest;

fuzz_target!(|script: &[u8]| guest::run(script));
