//! Hostile front-ends and guests by the property tester.

use proptest::prelude::*;

use crate::{front_end, guest};

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_device_stands_any_front_end(script in prop::collection::vec(any::<u8>(), 0..LONGEST)) {
        front_end::play(&script);
    }

    #[test]
    fn the_device_stands_any_guest(script in prop::collection::vec(any::<u8>(), 0..LONGEST)) {
        guest::play(&script);
    }
}

/// Bytes of the longest script.
const LONGEST: usize = 600;
