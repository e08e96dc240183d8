//! What the harness's own instruments cost.

use std::hint::black_box;
use std::time::Instant;

use hdrhistogram::Histogram;

use crate::schema::Calibration;

/// Repetitions of what takes nanoseconds.
const TIMES: u32 = 100_000;

/// Takes some milliseconds.
pub(crate) fn calibrate() -> Calibration {
    Calibration {
        clock_ns: each(|_| {
            black_box(Instant::now());
        }),
        stamp_ns_per_mib: 0.0,
        record_ns: record(),
    }
}

fn record() -> f64 {
    let Ok(mut histogram) = Histogram::<u64>::new(3) else {
        return 0.0;
    };
    // Resized now, not while it is timed.
    histogram.saturating_record(u64::from(TIMES));
    each(|value| histogram.saturating_record(value.into()))
}

/// Nanoseconds for one call.
fn each(mut call: impl FnMut(u32)) -> f64 {
    let begun = Instant::now();
    (0..TIMES).for_each(&mut call);
    begun.elapsed().as_nanos() as f64 / f64::from(TIMES)
}
