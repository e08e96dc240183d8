//! Tests of the engine between a guest and a host whose actions are decoded from bytes: random bytes, and the corpus
//! of the fuzzer.

// An unexpected error fails the test.
#![allow(clippy::unwrap_used)]

use pontoon_simnet::rng::Rng;
use pontoon_test_support::corpus::replay;
use pontoon_test_support::{engine, frame};

/// Tests the engine with random scripts of a few dozen steps, as the fuzzer generates them.
#[test]
fn engine_stays_within_its_limits() {
    chance(3_000, 400, engine::run);
}

/// Tests states of the engine with random scripts, unmodified and modified ones.
#[test]
fn restored_engine_stays_within_its_limits() {
    chance(3_000, 400, engine::state::run);
    chance(3_000, 400, |script| {
        // Most scripts have a hand-over of each kind.
        let script: Vec<u8> = script
            .chunks(40)
            .zip([0xfe, 0xff].into_iter().cycle())
            .flat_map(|(part, step)| [part, &[step]].concat())
            .collect();
        engine::state::run(&script);
    });
    chance(3_000, 400, engine::state::run_octets);
}

#[test]
fn random_frames_are_parsed_or_refused() {
    chance(20_000, 200, frame::run);
}

#[test]
fn engine_survives_the_corpus() {
    replay("engine", 50, engine::run);
}

#[test]
fn parser_survives_the_corpus() {
    replay("frame", 50, frame::run);
}

/// Runs `play` with `count` random scripts of up to `longest` bytes.
fn chance(count: u64, longest: usize, play: fn(&[u8])) {
    for seed in 0..count {
        let mut rng = Rng::new(seed);
        let len = rng.size(0..=longest);
        let script: Vec<u8> = (0..len).map(|_| rng.number() as u8).collect();
        play(&script);
    }
}
