//! Tests with hostile peers: random scripts and the fuzzer's corpus.

use proptest::prelude::*;

use pontoon_test_support::corpus::replay;
use pontoon_test_support::property::cases;
use pontoon_test_support::ring::{hostile_device, hostile_driver};

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn device_survives_random_drivers(script in prop::collection::vec(any::<u8>(), 0..LONGEST)) {
        hostile_driver::run(&script);
    }

    #[test]
    fn driver_survives_random_devices(script in prop::collection::vec(any::<u8>(), 0..LONGEST)) {
        hostile_device::run(&script);
    }
}

/// Length of the longest script in bytes.
const LONGEST: usize = 600;

#[test]
#[cfg_attr(miri, ignore = "Miri reads no files")]
fn device_survives_the_corpus() {
    replay("ring_device", 50, hostile_driver::run);
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads no files")]
fn driver_survives_the_corpus() {
    replay("ring_driver", 50, hostile_device::run);
}
