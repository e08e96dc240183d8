//! Fuzz target: the frame parser, with a frame and its offload metadata.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::frame;

fuzz_target!(|bytes: &[u8]| frame::run(bytes));
