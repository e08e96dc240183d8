//! A guest at the other end of a stream or packet link, and echo replies from anywhere.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| pontoon_worker::hostile::play(script));
