//! Transactions one after the other, with a histogram of their times.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::job::{JobMessage, JobResults};
use crate::schema;

use super::client::JobClient;
use super::failed;

/// The longest time that a histogram records, in nanoseconds: about 18 minutes, longer than any timeout.
const LONGEST: u64 = 1 << 40;

/// Significant decimal digits of a recorded time. Reports have two.
const DIGITS: u8 = 3;

/// The error of one transaction (a round trip, connection or query).
pub(crate) enum TransactionError {
    /// The error is counted, and the next transaction follows.
    Counted(String),
    /// The error ends the measurement with this message.
    Fatal(JobMessage),
}

/// Times of the transactions of one client process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LatencySamples {
    /// Pairs of a time in nanoseconds and the number of transactions that took it.
    counts: Vec<(u64, u64)>,
    errors: u64,
    last_error: Option<String>,
    /// Seconds from the start of the first transaction to the end of the last one.
    seconds: f64,
}

/// Runs transactions for the warm-up and the measurement, and sends the figures to the harness.
pub(crate) fn measure(
    client: &mut JobClient,
    congestion_control: Option<[String; 2]>,
    mut transaction: impl FnMut() -> Result<(), TransactionError>,
) -> Result<(), JobMessage> {
    run(client.warm_up(), &mut transaction)?;
    client.begin()?;
    let samples = run(client.duration(), &mut transaction)?;
    client.end(results(&[samples], congestion_control)?)
}

/// Runs transactions one after the other for `duration`.
///
/// # Errors
/// A transaction failed with [`TransactionError::Fatal`].
pub(crate) fn run(
    duration: Duration,
    mut transaction: impl FnMut() -> Result<(), TransactionError>,
) -> Result<LatencySamples, JobMessage> {
    let mut histogram = histogram();
    let (mut errors, mut last_error) = (0, None);
    let began = Instant::now();
    let mut before = began;
    while before - began < duration {
        let result = transaction();
        let now = Instant::now();
        match result {
            Ok(()) => record(&mut histogram, now - before),
            Err(TransactionError::Counted(why)) => {
                errors += 1;
                last_error = Some(why);
            }
            Err(TransactionError::Fatal(message)) => return Err(message),
        }
        before = now;
    }
    let counts = histogram.iter_recorded();
    Ok(LatencySamples {
        counts: counts
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect(),
        errors,
        last_error,
        seconds: (before - began).as_secs_f64(),
    })
}

/// Merges the samples of all client processes into the figures of the job.
///
/// # Errors
/// `Failed`: no transaction succeeded.
pub(crate) fn results(
    processes: &[LatencySamples],
    congestion_control: Option<[String; 2]>,
) -> Result<JobResults, JobMessage> {
    let mut histogram = histogram();
    let mut per_second = 0.0;
    for samples in processes {
        let before = histogram.len();
        for (value, count) in &samples.counts {
            histogram.saturating_record_n(*value, *count);
        }
        // Each process has its own duration, as they do not end at the same time.
        per_second += (histogram.len() - before) as f64 / samples.seconds;
    }
    let errors: u64 = processes.iter().map(|samples| samples.errors).sum();
    if histogram.is_empty() {
        let why = processes.iter().find_map(|samples| samples.last_error.as_deref());
        let why = why.unwrap_or("the duration is too short");
        return Err(failed(format_args!(
            "no transaction of {errors} succeeded: {why}"
        )));
    }
    let quantile = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Ok(JobResults {
        values: [
            ("p50_us", quantile(0.5)),
            ("p99_us", quantile(0.99)),
            ("per_s", per_second),
            ("errors", errors as f64),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into(),
        histograms: [("latency".to_owned(), rounded(&histogram))].into(),
        congestion_control,
    })
}

pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(LONGEST, DIGITS).expect("the bounds are constants that it accepts")
}

pub(crate) fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(time.as_nanos() as u64);
}

fn rounded(histogram: &Histogram<u64>) -> schema::Histogram {
    let mut counts = BTreeMap::<u64, u64>::new();
    for step in histogram.iter_recorded() {
        *counts.entry(two_digits(step.value_iterated_to())).or_default() += step.count_at_value();
    }
    schema::Histogram {
        unit: "us".to_owned(),
        counts: counts
            .into_iter()
            .map(|(value, count)| (value as f64 / 1e3, count))
            .collect(),
    }
}

/// Rounds to two significant decimal digits.
fn two_digits(value: u64) -> u64 {
    let last = 10_u64.pow(value.checked_ilog10().unwrap_or(0).saturating_sub(1));
    (value + last / 2) / last * last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_two_significant_digits() {
        let rounded = [0, 9, 14, 99, 104, 105, 996, 123_456_789].map(two_digits);
        assert_eq!(rounded, [0, 9, 14, 99, 100, 110, 1000, 120_000_000]);
    }

    #[test]
    fn merges_samples_of_processes() {
        let samples = |value, seconds| LatencySamples {
            counts: vec![(value, 100)],
            errors: 1,
            last_error: Some("refused".to_owned()),
            seconds,
        };
        let found = results(&[samples(20_000, 1.0), samples(40_000, 2.0)], None).unwrap();
        assert_eq!(found.values["per_s"], 150.0);
        assert_eq!(found.values["errors"], 2.0);
        assert!((20.0..20.1).contains(&found.values["p50_us"]), "{found:?}");
        assert!((40.0..40.1).contains(&found.values["p99_us"]), "{found:?}");
        assert_eq!(found.histograms["latency"].counts, [(20.0, 100), (40.0, 100)]);
    }

    #[test]
    fn transaction_without_answer_is_counted_as_error() {
        let mut count = 0;
        let samples = run(Duration::from_millis(20), || {
            count += 1;
            std::thread::sleep(Duration::from_millis(1));
            match count % 2 {
                0 => Err(TransactionError::Counted("no answer".to_owned())),
                _ => Ok(()),
            }
        })
        .unwrap();
        let answered: u64 = samples.counts.iter().map(|(_, count)| count).sum();
        assert_eq!(answered + samples.errors, count);
        assert_eq!(samples.errors, count / 2);
        assert!(samples.seconds >= 0.02);
    }

    #[test]
    fn fails_if_no_transaction_succeeds() {
        let samples = run(Duration::from_millis(1), || {
            Err(TransactionError::Counted("refused".to_owned()))
        })
        .unwrap();
        let Err(JobMessage::Failed { why }) = results(&[samples], None) else {
            panic!("a figure without a transaction");
        };
        assert!(why.ends_with("succeeded: refused"), "{why}");
    }
}
