//! Tests with hostile front-ends and guests: random scripts and the fuzzer's corpus.

use pontoon_test_support::corpus::replay;
use pontoon_test_support::vhost_user::{front_end, guest};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn device_survives_random_front_ends(script in prop::collection::vec(any::<u8>(), 0..LONGEST)) {
        front_end::run(&script);
    }

    #[test]
    fn device_survives_random_guests(script in prop::collection::vec(any::<u8>(), 0..LONGEST)) {
        guest::run(&script);
    }
}

#[test]
fn device_survives_the_corpus_of_messages() {
    replay("vhost_user_messages", 0, front_end::run);
}

#[test]
fn device_survives_the_corpus_of_chains() {
    replay("vhost_user_chains", 0, guest::run);
}

/// Length of the longest script in bytes.
const LONGEST: usize = 600;
