//! Untrusted input of the relay (packets, rules, IGMP and MLD messages) is parsed without panics and with consistent results:
//! random input, and the fuzzer's corpus.

// A test reports an error by panicking.
#![allow(clippy::unwrap_used)]

mod play;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

use proptest::prelude::*;

proptest! {
    #[test]
    fn accepts_random_input(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        play::play(&bytes);
    }
}

#[test]
fn accepts_the_fuzzing_corpus() {
    replay::replay("relay", 20, play::play);
}
