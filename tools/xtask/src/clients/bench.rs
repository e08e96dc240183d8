//! `cargo xtask clients --bench`: measurements with the original programs and Pontoon's, in interleaved rounds: TCP by
//! iperf3 in namespaces of rootlesskit, and the network of podman's containers.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::Result;

use crate::clients::cases::{Case, Client};
use crate::clients::{Host, Link, links};

/// A table of measurements, all of which are made by one case.
struct Bench {
    case: Case,
    title: &'static str,
    /// Names of the stacks in the results and in the table.
    stacks: &'static [(&'static str, &'static str)],
    /// Names of the measurements in the results and in the table.
    measurements: &'static [(&'static str, &'static str)],
    variables: &'static [&'static str],
}

const BENCHES: &[Bench] = &[ROOTLESSKIT, PODMAN];

const ROOTLESSKIT: Bench = Bench {
    case: Case {
        client: Client::RootlesskitV3,
        library: "bench",
        function: "all",
        deadline: 15 * 60,
    },
    title: "TCP, Mbit/s: median (lowest to highest) of 5 rounds",
    stacks: &[("original", "slirp4netns"), ("ours", "ours"), ("pasta", "pasta")],
    measurements: &[
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
    ],
    variables: &["ROUNDS=5", "SECONDS_EACH=3"],
};

const PODMAN: Bench = Bench {
    case: Case {
        client: Client::Podman,
        library: "podman-bench",
        function: "all",
        deadline: 20 * 60,
    },
    title: "containers of podman: median (lowest to highest) of 100 starts and 5 rounds",
    stacks: &[("original", "pasta"), ("ours", "ours"), ("none", "no network")],
    measurements: &[
        ("start", "network in `run`, us"),
        ("up-65520", "up, MTU 65520, Mbit/s"),
        ("down-65520", "down, MTU 65520, Mbit/s"),
        ("up-1500", "up, MTU 1500, Mbit/s"),
        ("down-1500", "down, MTU 1500, Mbit/s"),
        ("udp-up", "UDP up, 1400 B, Mbit/s"),
        ("tcp_lat", "TCP, one way, ns"),
        ("udp_lat", "UDP, one way, ns"),
        ("requests", "HTTP request, us"),
        ("memory", "memory (PSS), kB"),
    ],
    variables: &["STARTS=100", "ROUNDS=5", "SECONDS_EACH=3"],
};

/// Measures with the clients whose names contain one of `filters`, and prints the tables. Returns false if a
/// measurement failed, or if a process, device, socket or namespace is left.
pub(crate) fn run(host: &Host, ours: &Path, filters: &[String]) -> Result<bool> {
    let mut complete = true;
    for bench in BENCHES {
        let client = bench.case.client.name();
        if filters.is_empty() || filters.iter().any(|filter| client.contains(filter)) {
            complete &= table(bench, host, &links(bench.case.client, ours))?;
        }
    }
    Ok(complete)
}

/// Measures, and prints one table.
fn table(bench: &Bench, host: &Host, links: &[Link]) -> Result<bool> {
    let variables: Vec<String> = bench.variables.iter().map(|text| (*text).to_owned()).collect();
    let (results, text) = host.run_with(&bench.case, "bench", links, &variables)?;
    let rates = rates(&text);
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}; {} {}, slirp4netns {}, pasta {}",
        bench.title,
        bench.case.client.name(),
        host.programs.version(bench.case.client),
        host.programs.package("slirp4netns"),
        host.programs.package("passt"),
    )?;
    write!(out, "{:<26}", "measurement")?;
    for (_, stack) in bench.stacks {
        write!(out, " {stack:<26}")?;
    }
    writeln!(out)?;
    let mut complete = true;
    for (measurement, description) in bench.measurements {
        write!(out, "{description:<26}")?;
        for (stack, _) in bench.stacks {
            let rates = rates.get(&(*stack, *measurement));
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

/// Returns false if a measurement is not made with a stack.
fn exists(stack: &str, measurement: &str) -> bool {
    match (stack, measurement.rsplit('-').next()) {
        ("none", _) => measurement == "start",
        (_, Some("builtin" | "slirp4netns")) => stack != "pasta",
        (_, Some("implicit")) => stack == "pasta",
        _ => true,
    }
}

/// Returns the rates by stack and measurement.
fn rates(text: &str) -> BTreeMap<(&str, &str), Vec<i64>> {
    let mut rates: BTreeMap<_, Vec<i64>> = BTreeMap::new();
    for line in text.lines() {
        if let Some((key, rate)) = rate(line) {
            rates.entry(key).or_default().push(rate);
        }
    }
    rates
}

/// Parses a line `value STACK/MEASUREMENT RATE`. A rate that is not a number is 0, which means that it failed.
fn rate(line: &str) -> Option<((&str, &str), i64)> {
    let (name, rate) = line.strip_prefix("value ")?.split_once(' ')?;
    Some((name.split_once('/')?, rate.trim().parse().unwrap_or(0)))
}

/// Returns the median, the minimum and the maximum of rates.
fn spread(rates: &[i64]) -> String {
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
