//! A hostile device by the property tester.

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
#[path = "../../../ring/tests/ring/script.rs"]
mod script;

proptest! {
    #![proptest_config(cases::cases(1024))]

    #[test]
    fn the_interface_gets_no_further_than_an_error(script in prop::collection::vec(any::<u8>(), 0..600)) {
        play::play(&script);
    }
}
