//! Hostile front-ends and guests by the property tester, and by the corpus that the fuzzer has gathered.

use pontoon_test_support::corpus::replay;
use pontoon_test_support::vhost_user::{front_end, guest};
use proptest::prelude::*;

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

#[test]
fn the_device_stands_the_corpus_of_messages() {
    replay("vhost_user_messages", 0, front_end::play);
}

#[test]
fn the_device_stands_the_corpus_of_chains() {
    replay("vhost_user_chains", 0, guest::play);
}

/// Bytes of the longest script.
const LONGEST: usize = 600;
