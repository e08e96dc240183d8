//! Fuzz target: the driver side of a virtqueue, with a hostile device.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::ring::hostile_device;

fuzz_target!(|script: &[u8]| hostile_device::run(script));
