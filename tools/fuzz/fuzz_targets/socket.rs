//! Fuzz target: the readers of stream and packet links, and of echo replies from any host.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| pontoon_worker::hostile::play(script));
