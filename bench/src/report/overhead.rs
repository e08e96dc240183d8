//! The share of a figure that is work of the harness itself.

use crate::schema::Calibration;

use super::number;
use super::summary::{CellSummary, StackSummary};

/// Title of the table row with these shares.
pub(super) const TITLE: &str = "work of the harness";

/// The part of a measured figure that the bench itself causes, not the stack.
#[derive(Clone, Copy)]
pub(super) enum HarnessShare {
    /// CPU time of the harness in units of one CPU: stamps are written at one end and checked at the other; this is
    /// the sum.
    Cpu(f64),
    /// The harness's share of the time of a transaction, 0 to 1.
    Transaction(f64),
}

impl HarnessShare {
    pub(super) fn value(self) -> f64 {
        match self {
            Self::Cpu(share) | Self::Transaction(share) => share,
        }
    }

    pub(super) fn text(self) -> String {
        let of = match self {
            Self::Cpu(_) => "a CPU, both ends together",
            Self::Transaction(_) => "a transaction",
        };
        format!("{} of {of}", number::percent(self.value()))
    }
}

/// Returns the harness's share of the figure of every stack in a cell. Returns `None` if the calibration does not
/// measure the harness's work for that metric.
pub(super) fn shares(of: &CellSummary<'_>, calibration: &Calibration) -> Option<Vec<String>> {
    share(&of.cell.figure, 1.0, calibration)?;
    let text =
        |entry: &StackSummary<'_>| Some(share(&of.cell.figure, entry.spread?.median, calibration)?.text());
    Some(
        of.entries
            .iter()
            .map(|entry| text(entry).unwrap_or_default())
            .collect(),
    )
}

/// Returns the harness's share of a figure with this median.
pub(super) fn share(figure: &str, median: f64, calibration: &Calibration) -> Option<HarnessShare> {
    match figure {
        "mbps" => {
            let mib_per_s = median * 1e6 / 8.0 / f64::from(1 << 20);
            Some(HarnessShare::Cpu(mib_per_s * calibration.stamp_ns_per_mib * 1e-9))
        }
        // The client reads the clock at the start and at the end of a transaction.
        "p50_us" | "p99_us" if median > 0.0 => {
            let own_us = (2.0 * calibration.clock_ns + calibration.record_ns) / 1e3;
            Some(HarnessShare::Transaction(own_us / median))
        }
        _ => None,
    }
}
