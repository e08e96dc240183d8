//! Fuzz target: the relay's parsers, with packets and configurations.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::relay;

fuzz_target!(|bytes: &[u8]| relay::run(bytes));
