//! `cargo xtask clients --bench`: TCP by iperf3 in namespaces of rootlesskit, with the original slirp4netns, Pontoon's
//! program and pasta, in interleaved rounds.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::Result;

use crate::clients::Host;
use crate::clients::cases::{Case, Client};

/// The case that runs all measurements.
const CASE: Case = Case {
    client: Client::RootlesskitV3,
    library: "bench",
    function: "all",
    deadline: 15 * 60,
};

const STACKS: [&str; 3] = ["original", "ours", "pasta"];

/// Names and descriptions of the measurements.
const MEASUREMENTS: &[(&str, &str)] = &[
    ("up-1500", "to the host, MTU 1500"),
    ("down-1500", "from the host, MTU 1500"),
    ("up-65520", "to the host, MTU 65520"),
    ("down-65520", "from the host, MTU 65520"),
    ("in-builtin", "to a port, builtin"),
    ("out-builtin", "from a port, builtin"),
    ("in-slirp4netns", "to a port, slirp4netns"),
    ("out-slirp4netns", "from a port, slirp4netns"),
    ("in-implicit", "to a port, implicit"),
    ("out-implicit", "from a port, implicit"),
];

/// Measures, and prints the table. Returns false if a measurement failed, or if a process, device, socket or namespace
/// is left.
pub(crate) fn run(host: &Host, ours: &Path) -> Result<bool> {
    let variables = ["ROUNDS=5".to_owned(), "SECONDS_EACH=3".to_owned()];
    let (results, text) = host.run_with(&CASE, "bench", ours, &variables)?;
    let rates = rates(&text);
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "TCP, Mbit/s: median (lowest to highest) of 5 rounds; rootlesskit {}, slirp4netns {}, pasta {}",
        host.programs.version(CASE.client),
        host.programs.package("slirp4netns"),
        host.programs.package("passt"),
    )?;
    let [original, ours, pasta] = ["slirp4netns", "ours", "pasta"];
    writeln!(out, "{:<26} {original:<26} {ours:<26} {pasta}", "measurement")?;
    let mut complete = true;
    for (measurement, description) in MEASUREMENTS {
        write!(out, "{description:<26}")?;
        for stack in STACKS {
            let rates = rates.get(&(stack, *measurement));
            complete &= !exists(stack, measurement) || rates.is_some_and(|rates| !rates.contains(&0));
            let cell = rates.map_or_else(|| "-".to_owned(), |rates| spread(rates));
            write!(out, " {cell:<26}")?;
        }
        writeln!(out)?;
    }
    for (check, reason) in results.failures() {
        complete = false;
        writeln!(out, "{check}: {reason}")?;
    }
    Ok(complete)
}

/// Returns false if the stack does not support the port driver of a measurement.
fn exists(stack: &str, measurement: &str) -> bool {
    match measurement.rsplit('-').next() {
        Some("builtin" | "slirp4netns") => stack != "pasta",
        Some("implicit") => stack == "pasta",
        _ => true,
    }
}

/// Returns the rates by stack and measurement.
fn rates(text: &str) -> BTreeMap<(&str, &str), Vec<u64>> {
    let mut rates: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for line in text.lines() {
        if let Some((key, rate)) = rate(line) {
            rates.entry(key).or_default().push(rate);
        }
    }
    rates
}

/// Parses a line `value STACK/MEASUREMENT RATE`. A rate that is not a number is 0.
fn rate(line: &str) -> Option<((&str, &str), u64)> {
    let (name, rate) = line.strip_prefix("value ")?.split_once(' ')?;
    Some((name.split_once('/')?, rate.trim().parse().unwrap_or(0)))
}

/// Returns the median, the minimum and the maximum of rates.
fn spread(rates: &[u64]) -> String {
    let mut sorted = rates.to_vec();
    sorted.sort_unstable();
    let median = sorted[sorted.len() / 2];
    format!("{median} ({} to {})", sorted[0], sorted[sorted.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::{rates, spread};

    #[test]
    fn rates_are_grouped_by_stack_and_measurement() {
        let rates = rates(
            "value ours/up-1500 300\nvalue ours/up-1500 100\ncheck end pass\nvalue ours/up-1500 null\n",
        );
        assert_eq!(rates[&("ours", "up-1500")], [300, 100, 0]);
        assert_eq!(rates.len(), 1);
    }

    #[test]
    fn spread_has_the_median_and_the_extremes() {
        assert_eq!(spread(&[300, 100, 200]), "200 (100 to 300)");
    }
}
