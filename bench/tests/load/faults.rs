//! Tests that the load client detects faults of the load server.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pontoon_bench::job::{Direction, Job, JobMessage};
use pontoon_bench::load::Fault;

use crate::client::{last_message_with, results_with, stalled_message_with};

/// A fault that delays every answer by 20 ms.
struct Slow;

impl Fault for Slow {
    fn delay() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A fault by which the server never answers.
struct Unresponsive;

impl Fault for Unresponsive {
    fn delay() {
        loop {
            std::thread::park();
        }
    }
}

/// A fault that corrupts one block of 512 bytes in a hundred.
struct Corrupting;

impl Fault for Corrupting {
    fn corrupt(bytes: &mut [u8]) {
        thread_local!(static BLOCKS: Cell<u32> = const { Cell::new(0) });
        for block in bytes.chunks_mut(512) {
            let count = BLOCKS.replace(BLOCKS.get() + 1);
            if count % 100 == 99 {
                block.iter_mut().for_each(|byte| *byte ^= 0xff);
            }
        }
    }
}

/// Time limit for a client to report a stall. On an idle machine it takes one or two seconds.
const LIMIT: Duration = Duration::from_secs(30);

const STOP: u64 = 1 << 20;

/// A fault that blocks every stream at position [`STOP`].
struct Stopped;

impl Fault for Stopped {
    fn block(position: u64) {
        if position >= STOP {
            loop {
                std::thread::park();
            }
        }
    }
}

/// A fault that blocks one stream only.
struct OneStopped;

impl Fault for OneStopped {
    fn block(position: u64) {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        if position >= STOP && !TAKEN.swap(true, Ordering::Relaxed) {
            Stopped::block(position);
        }
    }
}

#[test]
fn slow_answers_are_detected() {
    for job in [
        Job::RoundTrip,
        Job::Connect { clients: 1 },
        Job::Connect { clients: 4 },
        Job::DatagramRoundTrip,
        Job::IdleFlows { flows: 10 },
    ] {
        let results = results_with::<Slow>(job.clone());
        assert!(results.values["p50_us"] >= 20_000.0, "{job:?}: {results:?}");
        // Four server threads answer one connection in 20 ms each.
        assert!(results.values["per_s"] <= 200.0, "{job:?}: {results:?}");
    }
}

#[test]
fn wrong_block_of_stream_is_detected() {
    for direction in [Direction::Up, Direction::Down] {
        for streams in [1, 4] {
            let message = last_message_with::<Corrupting>(Job::Stream { direction, streams });
            let JobMessage::Failed { why } = &message else {
                panic!("{direction:?} {streams}: {message:?}");
            };
            assert!(why.contains("wrong stamp in the block at byte"), "{why}");
        }
    }
}

#[test]
fn wrong_block_of_hashed_transfer_is_detected() {
    for direction in [Direction::Up, Direction::Down] {
        let bytes = 1_000_000;
        let message = last_message_with::<Corrupting>(Job::Hash { direction, bytes });
        let JobMessage::Failed { why } = &message else {
            panic!("{direction:?}: {message:?}");
        };
        assert!(why.contains("hash"), "{why}");
    }
}

#[test]
fn lost_datagrams_are_counted() {
    // The datagrams of the test fit the receiver's buffer, so that only the fault loses datagrams.
    let results = results_with::<Corrupting>(Job::Datagrams {
        size: 64,
        rate: Some(500.0),
    });
    let loss = results.values["loss"];
    assert!((0.003..0.02).contains(&loss), "{results:?}");
}

#[test]
fn stall_is_reported_with_its_position() {
    for direction in [Direction::Up, Direction::Down] {
        for job in [
            Job::Stream {
                direction,
                streams: 1,
            },
            Job::Hash {
                direction,
                bytes: 100 << 20,
            },
        ] {
            let began = Instant::now();
            let message = stalled_message_with::<Stopped>(job.clone());
            let JobMessage::Stalled { at_byte } = message else {
                panic!("{job:?}: {message:?}");
            };
            // When a hashed transfer ends, the receiver has read all buffered bytes.
            assert!(
                (STOP - (256 << 10)..64 * STOP).contains(&at_byte),
                "{job:?}: {at_byte}"
            );
            assert!(began.elapsed() < LIMIT, "{job:?}");
        }
    }
}

#[test]
fn missing_answers_are_reported_as_stall() {
    for job in [
        Job::RoundTrip,
        Job::Connect { clients: 2 },
        Job::IdleFlows { flows: 3 },
    ] {
        let began = Instant::now();
        let message = stalled_message_with::<Unresponsive>(job.clone());
        assert_eq!(message, JobMessage::Stalled { at_byte: 0 }, "{job:?}");
        assert!(began.elapsed() < LIMIT, "{job:?}");
    }
    // The timeout of an echo is one second, regardless of the duration.
    let message = stalled_message_with::<Unresponsive>(Job::DatagramRoundTrip);
    assert!(matches!(message, JobMessage::Failed { .. }), "{message:?}");
}

#[test]
fn one_stalled_stream_of_several_is_reported() {
    let message = stalled_message_with::<OneStopped>(Job::Stream {
        direction: Direction::Up,
        streams: 4,
    });
    assert!(
        matches!(message, JobMessage::Stalled { at_byte } if at_byte >= STOP),
        "{message:?}"
    );
}
