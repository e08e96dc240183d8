//! What is written is understood as it was meant, or refused: by the corpus that the fuzzer has gathered.

// A test has no better answer to an error.
#![allow(clippy::unwrap_used)]

mod play;

use std::path::Path;

#[test]
fn stands_the_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/text");
    let texts: Vec<_> = std::fs::read_dir(corpus).unwrap().collect();
    assert!(texts.len() > 20, "{} texts", texts.len());
    for text in texts {
        play::play(&std::fs::read(text.unwrap().path()).unwrap());
    }
}
