//! The description of a report's machine, as text.

use std::collections::{BTreeMap, BTreeSet};

use crate::schema::{BenchmarkReport, Machine};

use super::number;

/// Relative difference up to which memory sizes count as equal, as the usable memory of one machine differs between
/// boots.
const MEMORY: f64 = 0.02;
/// Names of facts that describe the run and are not compared between machines. Memory is compared with a tolerance.
const OF_THE_RUN: [&str; 3] = ["began", "took", "memory"];

/// A property in which two machines differ.
pub(crate) struct MachineDifference {
    pub(crate) what: String,
    pub(crate) left: String,
    pub(crate) right: String,
}

/// Returns the properties in which the machines of two reports differ.
pub(crate) fn differences(left: &BenchmarkReport, right: &BenchmarkReport) -> Vec<MachineDifference> {
    let facts = |report| -> BTreeMap<String, String> { facts(report).into_iter().collect() };
    let (left_facts, right_facts) = (facts(left), facts(right));
    let names: BTreeSet<_> = left_facts.keys().chain(right_facts.keys()).collect();
    let mut differences = Vec::new();
    for name in names
        .into_iter()
        .filter(|name| !OF_THE_RUN.contains(&name.as_str()))
    {
        let value = |facts: &BTreeMap<String, String>| {
            facts.get(name).cloned().unwrap_or_else(|| "unknown".to_owned())
        };
        let (left, right) = (value(&left_facts), value(&right_facts));
        if left != right {
            let what = name.clone();
            differences.push(MachineDifference { what, left, right });
        }
    }
    let [one, other] = [left, right].map(|report| report.machine.memory_bytes as f64);
    if (one - other).abs() > MEMORY * one.max(other) {
        differences.push(MachineDifference {
            what: "memory".to_owned(),
            left: gib(one),
            right: gib(other),
        });
    }
    differences
}

fn gib(bytes: f64) -> String {
    format!("{} GiB", number::figure(bytes / f64::from(1 << 30)))
}

/// Returns the sentence below the title that describes machine and run.
pub(super) fn sentence(report: &BenchmarkReport) -> String {
    format!(
        "{}, {}. Medians of {} of {} s; each round measures every stack once.",
        in_words(&report.machine),
        date(report.began),
        number::counted(report.plan.rounds as usize, "round"),
        report.plan.duration,
    )
}

/// Returns CPUs and kernel of a machine as text.
pub(crate) fn in_words(machine: &Machine) -> String {
    let virtual_machine = machine
        .virtual_machine
        .as_ref()
        .map(|what| format!(", a virtual machine ({what})"));
    format!(
        "{}, {} CPUs{}, Linux {}",
        machine.cpu,
        machine.cpus,
        virtual_machine.unwrap_or_default(),
        machine.kernel
    )
}

/// Returns names and values of all properties of the machine and the run, in a fixed order.
pub(super) fn facts(report: &BenchmarkReport) -> Vec<(String, String)> {
    let machine = &report.machine;
    let mut facts = vec![
        ("kernel", machine.kernel.clone()),
        ("CPU", format!("{} × {}", machine.cpus, machine.cpu)),
        ("memory", gib(machine.memory_bytes as f64)),
        (
            "virtual machine",
            machine.virtual_machine.clone().unwrap_or_else(|| "no".to_owned()),
        ),
        ("default congestion control", machine.congestion_control.clone()),
        ("descriptors, hard limit", number::count(machine.descriptors_hard)),
        ("user id", machine.user_id.to_string()),
        ("began", date(report.began)),
        (
            "took",
            format!(
                "{} min",
                number::figure(report.ended.saturating_sub(report.began) as f64 / 60.0)
            ),
        ),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect::<Vec<_>>();
    facts.extend(
        machine
            .sysctls
            .iter()
            .map(|(name, value)| (name.clone(), value.clone())),
    );
    facts
}

/// Formats the UTC date of a time in seconds since 1970: `2026-11-21`.
fn date(seconds: u64) -> String {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
        .map_or_else(|| "no date".to_owned(), |time| time.strftime("%F").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_dates() {
        let seen = [0, 951_782_399, 951_782_400, 1_735_689_599, 1_795_219_200].map(date);
        assert_eq!(
            seen,
            [
                "1970-01-01",
                "2000-02-28",
                "2000-02-29",
                "2024-12-31",
                "2026-11-21"
            ]
        );
    }
}
