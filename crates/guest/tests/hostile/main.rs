//! A hostile device by the property tester, and by the corpus that the fuzzer has gathered.

#![expect(
    clippy::unwrap_used,
    reason = "all of this is tests; clippy knows only the functions marked so"
)]

use pontoon_test_support::corpus::replay;
use pontoon_test_support::guest;
use pontoon_test_support::property::cases;
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases(1024))]

    #[test]
    fn the_interface_gets_no_further_than_an_error(script in prop::collection::vec(any::<u8>(), 0..600)) {
        guest::play(&script);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads no files")]
fn the_interface_stands_the_corpus() {
    replay("guest", 50, guest::play);
}
