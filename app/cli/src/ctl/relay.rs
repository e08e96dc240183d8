//! Commands of `pontoon ctl relay`.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;
use pontoon_control::reply;
use pontoon_relay::Rule;
use pontoon_relay::counters::{InterfaceStats, OutputStats, RuleStats, Stats, WorkerStats};
use pontoon_relay::rates::Rate;
use serde_json::{Value, json};

use super::client::Client;
use super::print;
use crate::args::RelayCommand;

/// Time between the two requests whose difference gives the rates.
const BETWEEN: Duration = Duration::from_secs(1);

pub(super) fn relay(
    client: &Client<'_>,
    command: &RelayCommand,
    json: bool,
    to: &mut impl Write,
) -> Result<()> {
    let mut change = |batch: &Value| {
        let changed: reply::RelayChange = client.post("/v1/relay/rules", batch)?;
        print(to, json, &changed, write_change)
    };
    match command {
        RelayCommand::Add { rules } => {
            let rules: Vec<String> = rules.iter().map(Rule::to_string).collect();
            change(&json!({ "add": rules }))
        }
        RelayCommand::Remove { rules } => change(&json!({ "remove": rules })),
        RelayCommand::List => {
            let rules: reply::RelayRules = client.get("/v1/relay/rules")?;
            print(to, json, &rules, |rules, to| {
                rules.rules.iter().try_for_each(|rule| write_rule(rule, to))
            })
        }
        RelayCommand::Stats => {
            let before: Stats = client.get("/v1/relay/stats")?;
            std::thread::sleep(BETWEEN);
            let mut stats: Stats = client.get("/v1/relay/stats")?;
            stats.rate_since(&before);
            print(to, json, &stats, write_stats)
        }
    }
}

fn write_change(change: &reply::RelayChange, to: &mut dyn Write) -> io::Result<()> {
    for rule in &change.added {
        write!(to, "added ")?;
        write_rule(rule, to)?;
    }
    change
        .removed
        .iter()
        .try_for_each(|rule| writeln!(to, "removed {rule}"))
}

fn write_rule(rule: &reply::RelayRule, to: &mut dyn Write) -> io::Result<()> {
    write!(to, "{}", rule.rule)?;
    if !rule.waits.is_empty() {
        write!(to, " (waits: {})", rule.waits.join(", "))?;
    }
    writeln!(to)
}

fn write_stats(stats: &Stats, to: &mut dyn Write) -> io::Result<()> {
    for rule in &stats.rules {
        write_rule_stats(rule, to)?;
    }
    if stats.left_out > 0 {
        writeln!(
            to,
            "derived rules that are not installed, as there are no counters left: {}",
            stats.left_out
        )?;
    }
    for interface in &stats.interfaces {
        let name = format!("{} {}", interface.interface, interface.family);
        line(to, &name, &interface.state, &of_interface(interface), None)?;
    }
    for device in &stats.devices {
        let counts = [
            ("rx_dropped", device.rx_dropped),
            ("rx_missed", device.rx_missed),
            ("tx_dropped", device.tx_dropped),
        ];
        line(to, &format!("device {}", device.interface), "", &counts, None)?;
    }
    let every = [("softnet_dropped", stats.softnet_dropped)];
    line(to, "every device", "", &every, None)?;
    let sockets = [("refused_sockets", stats.refused_sockets)];
    line(to, "sockets", "", &sockets, None)?;
    for (number, worker) in stats.workers.iter().enumerate() {
        let state = format!("process {}", worker.pid);
        line(
            to,
            &format!("worker {number}"),
            &state,
            &of_worker(worker),
            worker.rate,
        )?;
    }
    if let Some(querier) = &stats.querier {
        let state = format!("process {}", querier.pid);
        let counts = [
            ("restarts", querier.restarts),
            ("sandbox_refused", querier.sandbox_refused),
            ("memberships_ignored", querier.memberships_ignored),
            ("memberships_evicted", querier.memberships_evicted),
        ];
        line(to, "querier", &state, &counts, None)?;
    }
    Ok(())
}

fn write_rule_stats(rule: &RuleStats, to: &mut dyn Write) -> io::Result<()> {
    writeln!(to, "{}", rule.rule)?;
    let received = [("received", rule.datagrams), ("bytes", rule.bytes)];
    line(to, "  in", "", &received, rule.rate)?;
    for output in &rule.outputs {
        let name = format!("  {}", output.output);
        line(to, &name, &output.state, &of_output(output), output.rate)?;
    }
    Ok(())
}

fn of_output(output: &OutputStats) -> [(&'static str, u64); 6] {
    [
        ("sent", output.sent),
        ("bytes", output.bytes),
        ("expired", output.expired),
        ("down", output.down),
        ("refused", output.refused),
        ("busy", output.busy),
    ]
}

fn of_interface(interface: &InterfaceStats) -> [(&'static str, u64); 9] {
    [
        ("datagrams", interface.datagrams),
        ("packets", interface.packets),
        ("kernel_dropped", interface.kernel_dropped),
        ("reopened", interface.reopened),
        ("unmatched", interface.unmatched),
        ("malformed", interface.malformed),
        ("checksum", interface.checksum),
        ("fragment", interface.fragment),
        ("cut", interface.cut),
    ]
}

fn of_worker(worker: &WorkerStats) -> [(&'static str, u64); 6] {
    [
        ("datagrams", worker.datagrams),
        ("sent", worker.sent),
        ("lost", worker.lost),
        ("batches", worker.batches),
        ("restarts", worker.restarts),
        ("sandbox_refused", worker.sandbox_refused),
    ]
}

/// Formats a line about an object of a relay: name, state, all counters that are not zero, and the rate. The first counter
/// is always shown.
fn line(
    to: &mut dyn Write,
    name: &str,
    state: &str,
    counts: &[(&str, u64)],
    rate: Option<Rate>,
) -> io::Result<()> {
    write!(to, "{name}:")?;
    if !state.is_empty() {
        write!(to, " {state},")?;
    }
    for (place, (what, count)) in counts.iter().enumerate() {
        if place == 0 || *count > 0 {
            write!(to, " {what} {count}")?;
        }
    }
    if let Some(Rate { datagrams, bytes }) = rate.filter(|rate| rate.datagrams > 0) {
        write!(to, " ({datagrams}/s, {:.1} Mbit/s)", bytes as f64 * 8.0 / 1e6)?;
    }
    writeln!(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of<T>(value: &T, write: fn(&T, &mut dyn Write) -> io::Result<()>) -> String {
        let mut text = Vec::new();
        write(value, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn lines_have_state_counters_and_rate() {
        let rate = Some(Rate {
            datagrams: 500,
            bytes: 50_000,
        });
        let output = OutputStats {
            output: "b *:*".to_owned(),
            state: "up".to_owned(),
            sent: 500,
            bytes: 50_000,
            busy: 2,
            rate,
            ..OutputStats::default()
        };
        let stats = Stats {
            rules: vec![RuleStats {
                rule: "a 239.1.1.1:* -> b *:*".to_owned(),
                datagrams: 502,
                bytes: 50_200,
                rate: Some(Rate::default()),
                outputs: vec![output],
            }],
            workers: vec![WorkerStats {
                pid: 7,
                rate,
                ..WorkerStats::default()
            }],
            refused_sockets: 3,
            ..Stats::default()
        };
        assert_eq!(
            text_of(&stats, write_stats),
            "a 239.1.1.1:* -> b *:*\n  in: received 502 bytes 50200\n  b *:*: up, sent 500 bytes 50000 busy 2 \
             (500/s, 0.4 Mbit/s)\nevery device: softnet_dropped 0\nsockets: refused_sockets 3\nworker 0: process 7, datagrams 0 (500/s, 0.4 Mbit/s)\n"
        );
    }

    #[test]
    fn waiting_rule_is_printed_with_its_reasons() {
        let rule = |waits: &[&str]| reply::RelayRule {
            rule: "a 239.1.1.1:* -> b *:*".to_owned(),
            waits: waits.iter().map(ToString::to_string).collect(),
        };
        let change = reply::RelayChange {
            added: vec![
                rule(&["a: no such interface", "b: the interface is down"]),
                rule(&[]),
            ],
            removed: vec!["b 239.1.1.1:* -> a *:*".to_owned()],
        };
        assert_eq!(
            text_of(&change, write_change),
            "added a 239.1.1.1:* -> b *:* (waits: a: no such interface, b: the interface is down)\n\
             added a 239.1.1.1:* -> b *:*\nremoved b 239.1.1.1:* -> a *:*\n"
        );
    }
}
