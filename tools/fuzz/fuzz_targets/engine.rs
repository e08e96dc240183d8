//! Fuzz target: an engine between a hostile guest and a host with arbitrary results.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::engine;

fuzz_target!(|script: &[u8]| engine::run(script));
