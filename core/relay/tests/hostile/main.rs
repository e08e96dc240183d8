//! Checks that parsers of the relay's untrusted input (packets, rules, IGMP and MLD messages) do not panic and return
//! consistent results, with random input and the fuzzer's corpus.

// A test reports an error by panicking.
#![allow(clippy::unwrap_used)]

use pontoon_test_support::corpus::replay;
use pontoon_test_support::relay::run;
use proptest::prelude::*;

proptest! {
    #[test]
    fn accepts_random_input(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        run(&bytes);
    }
}

#[test]
fn accepts_the_fuzzing_corpus() {
    replay("relay", 20, run);
}
