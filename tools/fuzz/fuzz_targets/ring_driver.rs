//! A hostile device against the ring's driver side.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::ring::hostile_device;

fuzz_target!(|script: &[u8]| hostile_device::run(script));
