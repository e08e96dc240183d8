//! Calibration: measures the CPU time that the load generator itself needs for each operation.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::schema::Calibration;

use super::latency;
use super::stamp::{BUFFER, StampChecker, stamp};

/// Measures the cost of reading the clock, of position stamps, and of recording in a histogram, in a few
/// milliseconds.
#[must_use]
pub fn calibrate() -> Calibration {
    let mut histogram = latency::histogram();
    Calibration {
        clock_ns: average(100_000, |_| {
            black_box(Instant::now());
        }),
        stamp_ns_per_mib: stamps(1_000),
        record_ns: average(100_000, |count| {
            latency::record(&mut histogram, Duration::from_nanos(count.into()));
        }),
    }
}

/// Returns the average time of one call of `call` over `calls` calls, in nanoseconds.
fn average(calls: u32, mut call: impl FnMut(u32)) -> f64 {
    let began = Instant::now();
    for count in 0..calls {
        call(count);
    }
    began.elapsed().as_nanos() as f64 / f64::from(calls)
}

/// Returns the time to write and check the stamps of 1 MiB, in nanoseconds, with the bytes in the cache as they are
/// right after a receive.
fn stamps(calls: u32) -> f64 {
    let mut buffer = vec![0; BUFFER];
    let mut checker = StampChecker::new();
    let mut spent = Duration::ZERO;
    for _ in 0..calls {
        let before = Instant::now();
        stamp(&mut buffer, checker.position());
        spent += before.elapsed();
        checker.room().copy_from_slice(&buffer);
        let before = Instant::now();
        let right = checker.check(BUFFER);
        spent += before.elapsed();
        assert_eq!(right, Ok(()));
    }
    spent.as_nanos() as f64 / f64::from(calls) * (1 << 20) as f64 / BUFFER as f64
}
