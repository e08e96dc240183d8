//! Tests of the interface with a hostile device: random scripts and the fuzzer's corpus.

use pontoon_test_support::corpus::replay;
use pontoon_test_support::guest;
use pontoon_test_support::property::cases;
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases(1024))]

    #[test]
    fn interface_survives_random_devices(script in prop::collection::vec(any::<u8>(), 0..600)) {
        guest::run(&script);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads no files")]
fn interface_survives_the_corpus() {
    replay("guest", 50, guest::run);
}
