//! A hostile device by the property tester, and by the corpus that the fuzzer has gathered.

#![expect(
    clippy::unwrap_used,
    reason = "all of this is tests; clippy knows only the functions marked so"
)]

use proptest::prelude::*;

#[path = "../../../ring/tests/ring/cases.rs"]
mod cases;
#[path = "../../../ring/tests/ring/ghost.rs"]
mod ghost;
#[path = "../../../ring/tests/ring/model.rs"]
mod model;
mod play;
#[path = "../../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../ring/tests/ring/script.rs"]
mod script;

proptest! {
    #![proptest_config(cases::cases(1024))]

    #[test]
    fn the_interface_gets_no_further_than_an_error(script in prop::collection::vec(any::<u8>(), 0..600)) {
        play::play(&script);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads no files")]
fn the_interface_stands_the_corpus() {
    replay::replay("guest", 50, play::play);
}
