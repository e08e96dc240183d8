//! What others say to a relay is understood as it was meant, or refused: by chance, and by the corpus that the fuzzer has
//! gathered.

// A test has no better answer to an error.
#![allow(clippy::unwrap_used)]

mod play;

use std::path::Path;

use proptest::prelude::*;

proptest! {
    #[test]
    fn stands_chance(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        play::play(&bytes);
    }
}

#[test]
fn stands_the_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/relay");
    let scripts: Vec<_> = std::fs::read_dir(corpus).unwrap().collect();
    assert!(scripts.len() > 20, "{} scripts", scripts.len());
    for script in scripts {
        play::play(&std::fs::read(script.unwrap().path()).unwrap());
    }
}
