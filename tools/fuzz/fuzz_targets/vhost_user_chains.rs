//! Fuzz target: the vhost-user device, with rings and memory of a hostile guest.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::vhost_user::guest;

fuzz_target!(|script: &[u8]| guest::run(script));
