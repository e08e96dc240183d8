//! Hostile peers by the property tester, and by the corpus that the fuzzer has gathered.

use proptest::prelude::*;

use pontoon_test_support::corpus::replay;
use pontoon_test_support::property::cases;
use pontoon_test_support::ring::{hostile_device, hostile_driver};

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn the_device_keeps_its_bounds(script in prop::collection::vec(any::<u8>(), 0..LONGEST)) {
        hostile_driver::play(&script);
    }

    #[test]
    fn the_driver_keeps_its_books(script in prop::collection::vec(any::<u8>(), 0..LONGEST)) {
        hostile_device::play(&script);
    }
}

/// Bytes of the longest script.
const LONGEST: usize = 600;

#[test]
#[cfg_attr(miri, ignore = "Miri reads no files")]
fn the_device_stands_the_corpus() {
    replay("ring_device", 50, hostile_driver::play);
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads no files")]
fn the_driver_stands_the_corpus() {
    replay("ring_driver", 50, hostile_device::play);
}
