//! How a cell's times are distributed: which share took no longer than so long.

use std::collections::BTreeMap;

use maud::Markup;

use super::{Axis, BOTTOM, Curve, Curves, HEIGHT, TOP, tint};
use crate::report::summary::CellSummary;
use crate::schema::{Histogram, Outcome, Stack};

/// The plot ends where all but one in a thousand of the slowest stack's times are in it.
const SHOWN: f64 = 0.999;

/// Of the histograms named `name`, all rounds together; none where no stack has any.
pub(in crate::report) fn distribution(of: &CellSummary<'_>, stacks: &[&Stack], name: &str) -> Option<Markup> {
    let mut unit = "";
    let mut curves = Vec::new();
    for entry in &of.entries {
        let measured = entry
            .samples
            .iter()
            .filter(|sample| sample.outcome == Outcome::Measured);
        let histograms: Vec<_> = measured
            .filter_map(|sample| sample.histograms.get(name))
            .collect();
        let points = cumulative(&histograms);
        if let (Some(histogram), false) = (histograms.first(), points.is_empty()) {
            unit = &histogram.unit;
            curves.push(Curve {
                name: entry.stack.name.clone(),
                tint: tint(stacks, entry.stack),
                points,
            });
        }
    }
    let from = curves
        .iter()
        .filter_map(|curve| curve.points.first())
        .map(|point| point.0)
        .reduce(f64::min)?;
    let to = curves
        .iter()
        .map(|curve| quantile(&curve.points, SHOWN))
        .fold(from, f64::max);
    let plot = Curves {
        x: Curves::x_axis(from, to),
        y: Axis::linear(0.0, 1.0, HEIGHT - BOTTOM, TOP).labelled(|share| format!("{:.0} %", share * 100.0)),
        x_title: format!("{} or less (logarithmic)", unit.replace("us", "µs")),
        guides: vec![0.5, 0.99],
        curves,
        dots: false,
    };
    Some(plot.markup())
}

/// Values with the share of values that are no larger. Logarithms need positive ones; zero is a clock's coarseness, and
/// shown at the next value.
fn cumulative(histograms: &[&Histogram]) -> Vec<(f64, f64)> {
    // Positive floats sort as their bits do.
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

fn quantile(points: &[(f64, f64)], share: f64) -> f64 {
    let at = points.iter().find(|point| point.1 >= share).or(points.last());
    at.map_or(0.0, |point| point.0)
}
