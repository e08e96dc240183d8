//! What others say to a relay is understood as it was meant, or refused: by chance, and by the corpus that the fuzzer has
//! gathered.

// A test has no better answer to an error.
#![allow(clippy::unwrap_used)]

mod play;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

use proptest::prelude::*;

proptest! {
    #[test]
    fn stands_chance(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        play::play(&bytes);
    }
}

#[test]
fn stands_the_corpus() {
    replay::replay("relay", 20, play::play);
}
