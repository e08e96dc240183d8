//! What others say to a relay is understood as it was meant, or refused: by chance, and by the corpus that the fuzzer has
//! gathered.

// A test has no better answer to an error.
#![allow(clippy::unwrap_used)]

use pontoon_test_support::corpus::replay;
use pontoon_test_support::relay::run;
use proptest::prelude::*;

proptest! {
    #[test]
    fn stands_chance(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        run(&bytes);
    }
}

#[test]
fn stands_the_corpus() {
    replay("relay", 20, run);
}
