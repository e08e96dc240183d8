//! What is sent to a relay, and what is written into its configuration.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::relay;

fuzz_target!(|bytes: &[u8]| relay::run(bytes));
