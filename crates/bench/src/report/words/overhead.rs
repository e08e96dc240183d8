//! How much of a figure is the harness's own work.

use crate::report::number;
use crate::report::summary::{CellSummary, Entry, Summary};
use crate::schema::Calibration;

/// Under this share it is not worth a word in a scenario's notes.
const WORTH_SAYING: f64 = 0.001;
/// From this share of a CPU on, the harness holds a fast stack back.
const TOO_MUCH: f64 = 0.5;

/// What a share is of. Stamps are written at one end and checked at the other.
const CPU: &str = "a CPU, both ends together";
const TRANSACTION: &str = "a transaction";

pub(super) fn of_run(summary: &Summary<'_>) -> Vec<String> {
    let Calibration {
        clock_ns,
        stamp_ns_per_mib,
        record_ns,
    } = summary.report.calibration;
    vec![format!(
        "The harness's own work, calibrated on this machine: {} ns to read the clock, {} ns to record a value, {} µs per MiB \
         to write and check position stamps. It is in every figure, the same for all stacks, and not subtracted; each \
         scenario says how large a part it is.",
        number::figure(clock_ns),
        number::figure(record_ns),
        number::figure(stamp_ns_per_mib / 1e3),
    )]
}

/// The largest share in any figure of a scenario; it is where the figure is best.
pub(super) fn of_cells(cells: &[&CellSummary<'_>], calibration: &Calibration) -> Vec<String> {
    let shares = cells.iter().flat_map(|of| {
        let medians = of
            .entries
            .iter()
            .filter_map(|entry| Some((entry, entry.spread?.median)));
        medians.filter_map(|(entry, median)| {
            let (share, of_what) = share(&of.cell.figure, median, calibration)?;
            Some((share, of_what, &of.cell.name, &entry.stack.name))
        })
    });
    let largest = shares.max_by(|left, right| left.0.total_cmp(&right.0));
    let worth = largest.filter(|&(share, ..)| share >= WORTH_SAYING);
    let note = worth.map(|(share, of_what, cell, stack)| {
        let more = match of_what {
            CPU if share >= TOO_MUCH => {
                " That holds the fastest stacks back: they are faster than they look."
            }
            _ => "",
        };
        format!(
            "The harness's own work, as calibrated, is up to {} of {of_what} (`{cell}`, {stack}).{more}",
            number::percent(share)
        )
    });
    note.into_iter().collect()
}

pub(in crate::report) const OWN_SHARE: &str = "the harness's own work";

/// The harness's share of every stack's figure; none of metrics that it does not work for.
pub(in crate::report) fn own_shares(of: &CellSummary<'_>, calibration: &Calibration) -> Option<Vec<String>> {
    share(&of.cell.figure, 1.0, calibration)?;
    let shown = |entry: &Entry<'_>| {
        let (share, of_what) = share(&of.cell.figure, entry.spread?.median, calibration)?;
        Some(format!("{} of {of_what}", number::percent(share)))
    };
    Some(
        of.entries
            .iter()
            .map(|entry| shown(entry).unwrap_or_default())
            .collect(),
    )
}

/// The harness's share of a figure, and of what it is a share.
fn share(figure: &str, median: f64, calibration: &Calibration) -> Option<(f64, &'static str)> {
    match figure {
        "mbps" => {
            let mib_per_s = median * 1e6 / 8.0 / f64::from(1 << 20);
            Some((mib_per_s * calibration.stamp_ns_per_mib * 1e-9, CPU))
        }
        // A transaction begins and ends with a look at the clock.
        "p50_us" | "p99_us" if median > 0.0 => {
            let own_us = (2.0 * calibration.clock_ns + calibration.record_ns) / 1e3;
            Some((own_us / median, TRANSACTION))
        }
        _ => None,
    }
}
