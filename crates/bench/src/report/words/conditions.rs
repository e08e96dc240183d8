//! What the machine did meanwhile.

use super::counted;
use crate::report::number;
use crate::schema::{Conditions, Report, Sample};

/// CPUs busy with something else. Kernel accounting moves in ticks of 10 ms, one of which is 0.2 CPUs in 50 ms.
const BUSY_CPUS: f64 = 0.25;
/// Share of CPU time; a tick in a second on two CPUs is 0.005.
const STEAL: f64 = 0.02;
/// Of the sample's length: what a clock may be slewed by NTP (adjtimex(2)) is half of it.
const DRIFT: f64 = 0.001;

pub(super) fn of_run(report: &Report) -> Vec<String> {
    let drift = DRIFT * report.plan.duration * 1e6;
    let notes = [
        exceeding(
            report,
            |at| at.busy_before,
            BUSY_CPUS,
            |worst| {
                format!(
                    "the machine was busy with something else ({} CPUs at worst",
                    number::figure(worst)
                )
            },
        ),
        exceeding(
            report,
            |at| at.steal,
            STEAL,
            |worst| {
                format!(
                    "the hypervisor took CPU time away ({} at worst",
                    number::percent(worst)
                )
            },
        ),
        exceeding(
            report,
            |at| at.clock_drift_us.abs(),
            drift,
            |worst| {
                format!(
                    "the monotonic clock and the wall clock drifted apart ({} µs at worst",
                    number::figure(worst)
                )
            },
        ),
    ];
    notes.into_iter().flatten().collect()
}

fn exceeding(
    report: &Report,
    of: impl Fn(&Conditions) -> f64,
    limit: f64,
    what: impl Fn(f64) -> String,
) -> Option<String> {
    let amount = |sample: &&Sample| of(&sample.conditions);
    let over = report.samples.iter().filter(|sample| amount(sample) > limit);
    let worst = over
        .clone()
        .max_by(|left, right| amount(left).total_cmp(&amount(right)))?;
    Some(format!(
        "In {} of {} {}: `{}`, {}, round {}).",
        number::count(over.count() as u64),
        counted(report.samples.len(), "sample"),
        what(amount(&worst)),
        worst.cell,
        worst.stack,
        worst.round + 1,
    ))
}
