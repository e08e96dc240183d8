//! Plot of the share of lost datagrams over the rate at which they were sent.

use std::collections::BTreeMap;

use maud::Markup;

use super::curves::{Axis, Curve, Curves};
use super::{colour, short, trimmed};
use crate::report::summary::{CellSummary, StackSummary};
use crate::schema::{SampleOutcome, StackDescription, StackRole, Trial};
use crate::stats;

/// The share up to which a loss is drawn as no loss: one in a hundred thousand.
const NONE: f64 = 1e-5;
/// The loss up to which the search for the highest lossless rate accepts a rate.
const ALLOWED: f64 = 1e-3;
/// Resolution of the rate: trials in the same tenth of a decade become one point.
const POINTS_PER_DECADE: f64 = 10.0;

/// Plots the trials of the searches for the highest lossless rate. Returns `None` if there were none.
pub(in crate::report) fn rate_loss(of: &CellSummary<'_>, stacks: &[&StackDescription]) -> Option<Markup> {
    let curve = |entry: &StackSummary<'_>| {
        let measured = entry
            .samples
            .iter()
            .filter(|sample| sample.outcome == SampleOutcome::Measured);
        let points = points(measured.flat_map(|sample| &sample.trials));
        let curve = Curve {
            name: entry.stack.name.clone(),
            colour: colour(stacks, entry.stack),
            is_dashed: entry.stack.role == StackRole::Kernel,
            points,
        };
        (!curve.points.is_empty()).then_some(curve)
    };
    let curves: Vec<_> = of.entries.iter().filter_map(curve).collect();
    let rates = || curves.iter().flat_map(|curve| &curve.points).map(|point| point.0);
    let (from, to) = (rates().reduce(f64::min)?, rates().reduce(f64::max)?);
    let plot = Curves {
        x: Axis::log(from, to, short),
        y: Axis::log(NONE, 1.0, |loss| match loss {
            loss if loss < 1.5 * NONE => "none".to_owned(),
            loss => trimmed(loss * 100.0) + " %",
        }),
        x_title: "datagrams sent per second (logarithmic)".to_owned(),
        guides: vec![ALLOWED],
        curves,
        has_dots: true,
    };
    Some(plot.markup())
}

/// Returns one point for each group of trials at similar rates: the median rate and the median loss.
fn points<'a>(trials: impl Iterator<Item = &'a Trial>) -> Vec<(f64, f64)> {
    let mut near: BTreeMap<i64, Vec<&Trial>> = BTreeMap::new();
    for trial in trials.filter(|trial| trial.sent_per_s > 0.0) {
        let bucket = (trial.sent_per_s.log10() * POINTS_PER_DECADE).round() as i64;
        near.entry(bucket).or_default().push(trial);
    }
    let of = |trials: &Vec<&Trial>, of: fn(&Trial) -> f64| {
        stats::median(&trials.iter().map(|trial| of(trial)).collect::<Vec<_>>())
    };
    let point = |trials: Vec<&Trial>| {
        Some((
            of(&trials, |trial| trial.sent_per_s)?,
            of(&trials, |trial| trial.loss)?,
        ))
    };
    near.into_values().filter_map(point).collect()
}
