//! Fuzz target: the state of an engine, which another one restores.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::engine::state;

fuzz_target!(|script: &[u8]| match script.split_first() {
    Some((0, octets)) => state::run_octets(octets),
    Some((_, script)) => state::run(script),
    None => {}
});
