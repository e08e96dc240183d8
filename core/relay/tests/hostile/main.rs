//! Checks that parsers of the relay's untrusted input (packets, rules, IGMP and MLD messages) do not panic and return
//! consistent results, with random input and the fuzzer's corpus.

// A test reports an error by panicking.
#![allow(clippy::unwrap_used)]

use pontoon_test_support::corpus::replay;
use pontoon_test_support::relay::run;
use proptest::prelude::*;

proptest! {
    #[test]
    fn random_input_is_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        run(&bytes);
    }
}

#[test]
fn fuzzing_corpus_is_parsed_without_panic() {
    replay("relay", 20, run);
}
