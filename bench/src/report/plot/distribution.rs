//! The cumulative distribution of the transaction times of a cell, a curve per stack.

use std::collections::BTreeMap;

use maud::Markup;

use super::curves::{Axis, Curve, Curves};
use super::{colour, short, trimmed};
use crate::report::summary::CellSummary;
use crate::schema::{Histogram, SampleOutcome, StackDescription, StackRole};

/// Cumulative share at the lower end of the plot.
const LEAST: f64 = 0.01;
/// Cumulative share at the upper end of the plot.
const MOST: f64 = 0.999;

/// Plots the histograms of this name, each stack's rounds merged. Returns `None` if no stack has such a histogram.
pub(in crate::report) fn distribution(
    of: &CellSummary<'_>,
    stacks: &[&StackDescription],
    name: &str,
) -> Option<Markup> {
    let mut unit = "";
    let mut curves = Vec::new();
    for entry in &of.entries {
        let measured = entry
            .samples
            .iter()
            .filter(|sample| sample.outcome == SampleOutcome::Measured);
        let histograms: Vec<_> = measured
            .filter_map(|sample| sample.histograms.get(name))
            .collect();
        let points = shown(&cumulative(&histograms));
        if let (Some(histogram), false) = (histograms.first(), points.is_empty()) {
            unit = &histogram.unit;
            curves.push(Curve {
                name: entry.stack.name.clone(),
                colour: colour(stacks, entry.stack),
                is_dashed: entry.stack.role == StackRole::Kernel,
                points,
            });
        }
    }
    let values = || curves.iter().flat_map(|curve| &curve.points).map(|point| point.0);
    let (from, to) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
    let plot = Curves {
        x: Axis::log(from, to, short),
        y: Axis::logistic(LEAST, MOST, |share| trimmed(share * 100.0) + " %"),
        x_title: format!("{} (logarithmic)", unit.replace("us", "µs")),
        guides: vec![0.5, 0.99],
        curves,
        has_dots: false,
    };
    Some(plot.markup())
}

/// Returns pairs of a value and the share of values not larger than it. Zeros, which come from the clock's
/// resolution, have no logarithm and are counted at the next larger value.
fn cumulative(histograms: &[&Histogram]) -> Vec<(f64, f64)> {
    // The bits of positive floats have the same order as the floats.
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for &(value, count) in histograms.iter().flat_map(|histogram| &histogram.counts) {
        *counts.entry(value.max(0.0).to_bits()).or_default() += count;
    }
    let total: u64 = counts.values().sum();
    let mut seen = 0;
    let points = counts.into_iter().map(|(bits, count)| {
        seen += count;
        (f64::from_bits(bits), seen as f64 / total as f64)
    });
    points.filter(|&(value, _)| value > 0.0).collect()
}

/// Returns the points from the last one below [`LEAST`] to the first one above [`MOST`], which are visible in the
/// plot.
fn shown(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let start = points.partition_point(|point| point.1 < LEAST);
    let end = points.partition_point(|point| point.1 < MOST);
    let shown = &points[start..points.len().min(end + 1)];
    let first = shown.first().map(|point| (point.0, LEAST));
    first.into_iter().chain(shown.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_rounds_and_cuts_off_tails() {
        let histogram = |counts| Histogram {
            unit: "us".to_owned(),
            counts,
        };
        let [first, second] = [
            vec![(0.0, 1), (20.0, 499)],
            vec![(20.0, 1), (30.0, 498), (50.0, 1)],
        ]
        .map(histogram);
        let points = cumulative(&[&first, &second]);
        assert_eq!(points, [(20.0, 0.501), (30.0, 0.999), (50.0, 1.0)]);
        assert_eq!(shown(&points), [(20.0, LEAST), (20.0, 0.501), (30.0, 0.999)]);
        assert_eq!(shown(&[]), []);
    }
}
