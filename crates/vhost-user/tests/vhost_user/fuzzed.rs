//! Hostile front-ends and guests by the property tester, and by the corpus that the fuzzer has gathered.

use std::path::Path;

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

#[test]
fn the_device_stands_the_corpus_of_messages() {
    replay("vhost_user_messages", front_end::play);
}

#[test]
fn the_device_stands_the_corpus_of_chains() {
    replay("vhost_user_chains", guest::play);
}

fn replay(target: &str, play: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let scripts: Vec<_> = std::fs::read_dir(corpus).unwrap().collect();
    assert!(!scripts.is_empty());
    for script in scripts {
        play(&std::fs::read(script.unwrap().path()).unwrap());
    }
}

/// Bytes of the longest script.
const LONGEST: usize = 600;
