//! Packets to a relay, and its configuration.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::relay;

fuzz_target!(|bytes: &[u8]| relay::run(bytes));
