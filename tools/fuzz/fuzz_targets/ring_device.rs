//! Fuzz target: the device side of a virtqueue, with a hostile driver.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::ring::hostile_driver;

fuzz_target!(|script: &[u8]| hostile_driver::run(script));
