//! Fuzz target: the guest library, with a hostile device.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::guest;

fuzz_target!(|script: &[u8]| guest::run(script));
