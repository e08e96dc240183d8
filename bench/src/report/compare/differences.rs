//! Differences between two runs in machine, plan, calibration and conditions.

use std::collections::{BTreeMap, BTreeSet};

use crate::report::{machine, number};
use crate::schema::{BenchmarkReport, Conditions};
use crate::stats;

/// The factor between two calibrations from which on a difference is reported. They are short measurements, and
/// noisy.
const CALIBRATION: f64 = 1.5;
/// The difference of medians from which on a difference in load is reported, in CPUs busy before a sample.
const LOAD: f64 = 0.1;
/// The difference of medians from which on a difference in the share of stolen CPU time is reported.
const STEAL: f64 = 0.01;

pub(super) fn warnings(left: &BenchmarkReport, right: &BenchmarkReport) -> Vec<String> {
    let mut warnings = machines(left, right);
    warnings.extend(harness(left, right));
    warnings.extend(stacks(left, right));
    warnings.extend(load(left, right));
    warnings.extend(conditions(left, right));
    warnings
}

fn differ(what: &str, left: &str, right: &str) -> String {
    format!("**{what} differs**: A {left}, B {right}.")
}

fn machines(left: &BenchmarkReport, right: &BenchmarkReport) -> Vec<String> {
    machine::differences(left, right)
        .iter()
        .map(|found| differ(&found.what, &found.left, &found.right))
        .collect()
}

fn harness(left: &BenchmarkReport, right: &BenchmarkReport) -> Vec<String> {
    let mut warnings = Vec::new();
    if left.generator != right.generator {
        warnings.push(differ(
            "the program that measured",
            &left.generator,
            &right.generator,
        ));
    }
    if left.plan.duration != right.plan.duration {
        let seconds = |report: &BenchmarkReport| format!("{} s", report.plan.duration);
        warnings.push(differ("a measurement's length", &seconds(left), &seconds(right)));
    }
    let (ours, theirs) = (left.calibration.clone(), right.calibration.clone());
    for (what, left, right) in [
        (
            "the cost of reading the clock (ns)",
            ours.clock_ns,
            theirs.clock_ns,
        ),
        (
            "the cost of stamps (ns per MiB)",
            ours.stamp_ns_per_mib,
            theirs.stamp_ns_per_mib,
        ),
        (
            "the cost of recording a value (ns)",
            ours.record_ns,
            theirs.record_ns,
        ),
    ] {
        if left.max(right) > CALIBRATION * left.min(right) {
            warnings.push(differ(what, &number::figure(left), &number::figure(right)));
        }
    }
    warnings
}

fn stacks(left: &BenchmarkReport, right: &BenchmarkReport) -> Vec<String> {
    let mut warnings = Vec::new();
    for ours in &left.stacks {
        let Some(theirs) = right.stacks.iter().find(|stack| stack.name == ours.name) else {
            continue;
        };
        if ours.version != theirs.version {
            warnings.push(differ(
                &format!("{}'s version", ours.name),
                &ours.version,
                &theirs.version,
            ));
        }
        if ours.command != theirs.command {
            let code = |command: &str| format!("`{command}`");
            let what = format!("{}'s command", ours.name);
            warnings.push(differ(&what, &code(&ours.command), &code(&theirs.command)));
        }
    }
    warnings
}

fn load(left: &BenchmarkReport, right: &BenchmarkReport) -> Vec<String> {
    let median = |report: &BenchmarkReport, of: fn(&Conditions) -> f64| {
        let values: Vec<_> = report
            .samples
            .iter()
            .map(|sample| of(&sample.conditions))
            .collect();
        stats::median(&values).unwrap_or_default()
    };
    let mut warnings = Vec::new();
    let [busy_left, busy_right] = [left, right].map(|report| median(report, |at| at.busy_before));
    if (busy_left - busy_right).abs() > LOAD {
        let cpus = |busy| format!("{} CPUs busy with other work", number::figure(busy));
        warnings.push(differ("load", &cpus(busy_left), &cpus(busy_right)));
    }
    let [steal_left, steal_right] = [left, right].map(|report| median(report, |at| at.steal));
    if (steal_left - steal_right).abs() > STEAL {
        warnings.push(differ(
            "steal",
            &number::percent(steal_left),
            &number::percent(steal_right),
        ));
    }
    warnings
}

/// Returns one warning for each condition that differs, with the cells and stacks in which it does.
fn conditions(left: &BenchmarkReport, right: &BenchmarkReport) -> Vec<String> {
    let (left, right) = (by_cell(left), by_cell(right));
    let mut where_of: BTreeMap<String, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for (&(cell, stack), ours) in &left {
        let Some(theirs) = right.get(&(cell, stack)) else {
            continue;
        };
        for (what, values) in ours {
            let others = &theirs[what];
            if values != others && !values.is_empty() && !others.is_empty() {
                let shown =
                    |values: &BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(" or ");
                let difference = differ(what, &shown(values), &shown(others));
                where_of
                    .entry(difference)
                    .or_default()
                    .entry(stack)
                    .or_default()
                    .push(cell);
            }
        }
    }
    let note = |(difference, stacks): (String, BTreeMap<&str, Vec<&str>>)| {
        let places = stacks
            .into_iter()
            .map(|(stack, cells)| format!("{stack} in `{}`", cells.join("`, `")));
        format!("{difference} ({})", places.collect::<Vec<_>>().join("; "))
    };
    where_of.into_iter().map(note).collect()
}

/// Values of each condition (MTU, congestion control, ...) that occur in the samples of a stack in a cell.
type ConditionValues = BTreeMap<&'static str, BTreeSet<String>>;

fn by_cell(report: &BenchmarkReport) -> BTreeMap<(&str, &str), ConditionValues> {
    let mut cells: BTreeMap<_, ConditionValues> = BTreeMap::new();
    for sample in &report.samples {
        let at = &sample.conditions;
        let seen = cells.entry((&*sample.cell, &*sample.stack)).or_default();
        let control = at
            .congestion_control
            .as_ref()
            .map(|[client, server]| format!("{client} and {server}"));
        for (what, value) in [
            ("congestion control (client, server)", control),
            ("MTU", at.mtu.map(|mtu| mtu.to_string())),
            ("queue length", at.queue_length.map(|length| length.to_string())),
        ] {
            seen.entry(what).or_default().extend(value);
        }
    }
    cells
}
