//! A report of a fictitious run on a small machine: with noise, a stack that stalls, one that cannot run every cell,
//! and one that is missing.

use std::collections::BTreeMap;

use pontoon_bench::schema::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Name, role, and the properties of the stack: its rates, its latencies and its CPU cost compared with veth's.
const STACKS: &[(&str, Role, f64, f64, f64)] = &[
    ("direct", Role::Kernel, 1.05, 0.97, 0.0),
    ("veth", Role::Kernel, 1.0, 1.0, 0.0),
    ("pontoon", Role::Pontoon, 1.01, 0.70, 0.5),
    ("pontoon-event", Role::Pontoon, 0.93, 1.22, 0.4),
    ("pasta", Role::Peer, 0.32, 1.72, 0.9),
    ("pasta-debian", Role::Peer, 0.22, 1.8, 1.1),
    ("slirp4netns", Role::Peer, 0.14, 1.35, 2.5),
];

/// Scenario, parameters, figure, and veth's value of it.
type Planned = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
    f64,
);

const CELLS: &[Planned] = &[
    (
        "tcp-up",
        &[("streams", "1"), ("congestion_control", "cubic"), ("mtu", "best")],
        "mbps",
        17_300.0,
    ),
    (
        "tcp-up",
        &[("streams", "4"), ("congestion_control", "cubic"), ("mtu", "best")],
        "mbps",
        33_000.0,
    ),
    (
        "tcp-up",
        &[("streams", "1"), ("congestion_control", "cubic"), ("mtu", "1500")],
        "mbps",
        16_100.0,
    ),
    (
        "tcp-up",
        &[("streams", "1"), ("congestion_control", "bbr"), ("mtu", "best")],
        "mbps",
        17_500.0,
    ),
    ("tcp-up", &[("check", "hash")], "errors", 0.0),
    (
        "tcp-down",
        &[("streams", "1"), ("congestion_control", "cubic"), ("mtu", "best")],
        "mbps",
        15_000.0,
    ),
    (
        "tcp-down",
        &[("streams", "4"), ("congestion_control", "cubic"), ("mtu", "best")],
        "mbps",
        31_000.0,
    ),
    ("rr", &[], "p50_us", 57.0),
    ("crr", &[("clients", "1")], "p50_us", 73.0),
    ("crr", &[("clients", "8")], "per_s", 33_700.0),
    ("publish-crr", &[("clients", "1")], "p50_us", 75.0),
    ("udp-rate", &[("size", "64")], "lossless_per_s", 240_000.0),
    ("udp-rate", &[("size", "1400")], "lossless_per_s", 215_000.0),
    ("udp-rr", &[], "p50_us", 60.0),
    ("dns", &[], "per_s", 14_000.0),
    ("icmp-rr", &[], "p50_us", 41.0),
    ("blackhole", &[("pending", "0")], "p50_us", 57.0),
    ("blackhole", &[("pending", "1000")], "p50_us", 58.0),
    ("idle-flows", &[("flows", "10000")], "bytes_per_flow", 900.0),
    ("startup", &[], "start_us", 2_100.0),
    ("idle", &[], "wakeups_per_s", 0.0),
];

pub(crate) struct Fixture {
    rounds: u32,
    stacks: &'static [(&'static str, Role, f64, f64, f64)],
    seed: u64,
    scenarios: Option<&'static [&'static str]>,
}

impl Default for Fixture {
    fn default() -> Self {
        Self {
            rounds: 7,
            stacks: STACKS,
            seed: 1,
            scenarios: None,
        }
    }
}

impl Fixture {
    pub(crate) fn rounds(self, rounds: u32) -> Self {
        Self { rounds, ..self }
    }

    pub(crate) fn without_peers(self) -> Self {
        Self {
            stacks: &STACKS[..4],
            ..self
        }
    }

    pub(crate) fn scenarios(self, scenarios: &'static [&'static str]) -> Self {
        Self {
            scenarios: Some(scenarios),
            ..self
        }
    }

    pub(crate) fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    pub(crate) fn build(self) -> Report {
        let mut random = Random(ChaCha8Rng::seed_from_u64(self.seed));
        let is_planned = |planned: &&Planned| self.scenarios.is_none_or(|names| names.contains(&planned.0));
        let planned: Vec<_> = CELLS.iter().filter(is_planned).collect();
        let cells: Vec<Cell> = planned.iter().map(|planned| cell(planned)).collect();
        let mut samples = Vec::new();
        for (cell, planned) in cells.iter().zip(planned) {
            for round in 0..if cell.once { 1 } else { self.rounds } {
                // A factor that all stacks of a round share.
                let machine = random.about(1.0, 0.15);
                for stack in self.stacks {
                    let at_ms = samples.len() as u64 * 1_400;
                    samples.push(sample(cell, planned.3, stack, round, at_ms, machine, &mut random));
                }
            }
        }
        let mut stacks: Vec<Stack> = self.stacks.iter().map(stack).collect();
        stacks.push(Stack {
            missing: Some("no `passt` on PATH".to_owned()),
            ..stack(&("passt", Role::Peer, 0.0, 0.0, 0.0))
        });
        Report {
            version: VERSION,
            generator: "pontoon 0.1.0".to_owned(),
            began: 1_795_222_800 + self.seed * 86_400,
            ended: 1_795_222_800 + self.seed * 86_400 + samples.len() as u64 * 14 / 10,
            command:
                "pontoon bench --against direct,veth,pasta --variant pontoon-event='--io event' --rounds 7"
                    .to_owned(),
            plan: Plan {
                rounds: self.rounds,
                duration: 1.0,
                scenarios: vec!["full".to_owned()],
                stacks: self.stacks.iter().map(|stack| stack.0.to_owned()).collect(),
            },
            machine: Machine {
                kernel: "6.18.0".to_owned(),
                cpu: "AMD EPYC".to_owned(),
                cpus: 2,
                memory_bytes: 24 << 30,
                virtual_machine: Some("kvm".to_owned()),
                congestion_control: "cubic".to_owned(),
                sysctls: BTreeMap::from([("net.core.rmem_max".to_owned(), "4194304".to_owned())]),
                descriptors_hard: 20_000,
                user_id: 0,
            },
            calibration: Calibration {
                clock_ns: 31.0,
                stamp_ns_per_mib: 52_000.0,
                record_ns: 9.0,
            },
            stacks,
            cells,
            samples,
            backends: Vec::new(),
        }
    }
}

fn stack(&(name, role, ..): &(&str, Role, f64, f64, f64)) -> Stack {
    let (version, command) = match role {
        Role::Kernel => ("6.18.0", "CLIENT".to_owned()),
        Role::Pontoon => ("0.1.0", "pontoon run --host-loopback -- CLIENT".to_owned()),
        Role::Peer => (
            "2026-07",
            format!("{name} --config-net --map-host-loopback 10.0.2.2 -- CLIENT"),
        ),
    };
    Stack {
        name: name.to_owned(),
        role,
        version: version.to_owned(),
        command,
        missing: None,
    }
}

fn cell(&(scenario, parameters, figure, _): &Planned) -> Cell {
    let parts = parameters.iter().map(|(_, value)| format!("/{value}"));
    Cell {
        name: std::iter::once(scenario.to_owned()).chain(parts).collect(),
        scenario: scenario.to_owned(),
        parameters: parameters
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        figure: figure.to_owned(),
        once: parameters.contains(&("check", "hash")),
    }
}

fn sample(
    cell: &Cell,
    veth: f64,
    &(stack, role, rate, latency, cpu): &(&str, Role, f64, f64, f64),
    round: u32,
    at_ms: u64,
    machine: f64,
    random: &mut Random,
) -> Sample {
    let mut values = BTreeMap::new();
    let mut histograms = BTreeMap::new();
    let mut trials = Vec::new();
    let mut set = |name: &str, value: f64| values.insert(name.to_owned(), value);
    match &*cell.figure {
        "mbps" => {
            let mbps = random.about(veth * rate / machine, 0.2);
            set("mbps", mbps);
            set("machine_cpu_per_gbit_s", random.about(0.09 + 0.09 * cpu, 0.05));
            set("cpu_per_gbit_s", random.about(0.07 * cpu, 0.05));
        }
        "p50_us" => {
            let p50 = random.about(veth * latency * machine, 0.03);
            let histogram = latencies(p50, random);
            set("p50_us", p50);
            set("p99_us", random.about(p50 * 1.6, 0.1));
            set("per_s", 1e6 / p50 / 1.1);
            set("cpu_per_transaction_us", random.about(20.0 * cpu, 0.05));
            set(
                "machine_cpu_per_transaction_us",
                random.about(35.0 + 22.0 * cpu, 0.05),
            );
            histograms.insert("transaction".to_owned(), histogram);
        }
        "lossless_per_s" => {
            let best = random.about(veth * (rate + 0.4).min(1.2) / machine, 0.05);
            set("lossless_per_s", best);
            set("per_s", random.about(best * 1.2, 0.05));
            set("loss", random.about(0.1 / rate, 0.1).min(1.0));
            set("cpu_per_datagram_us", random.about(2.0 * cpu, 0.05));
            set("machine_cpu_per_datagram_us", random.about(4.0 + 2.0 * cpu, 0.05));
            for step in [0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.3, 1.6] {
                let loss = if step <= 1.0 {
                    0.0
                } else {
                    random.about((step - 1.0) / step, 0.2)
                };
                trials.push(Trial {
                    sent_per_s: best * step,
                    loss,
                });
            }
        }
        "per_s" => {
            set("per_s", random.about(veth * rate.min(1.0) / machine, 0.05));
        }
        "wakeups_per_s" => {
            set(
                "wakeups_per_s",
                if role == Role::Peer {
                    random.about(4.0, 0.3)
                } else {
                    0.0
                },
            );
            set(
                "pss_bytes",
                if role == Role::Kernel {
                    0.0
                } else {
                    random.about(8.4e6 / rate, 0.01)
                },
            );
        }
        figure => {
            let scale = if role == Role::Kernel { 1.0 } else { 9.0 * latency };
            set(figure, random.about(veth * scale, 0.05));
        }
    }
    let outcome = match (stack, &*cell.name) {
        ("pasta", "tcp-down/1/cubic/best") if round % 3 == 1 => Outcome::Stalled {
            at_byte: 81_788_928 + u64::from(round),
        },
        ("pasta-debian", "idle-flows/10000") => Outcome::Unreachable {
            why: "it may open 4,096 descriptors".to_owned(),
        },
        ("slirp4netns", "crr/8") if round == 2 => Outcome::Failed {
            why: "connect: ECONNREFUSED".to_owned(),
        },
        ("direct", "publish-crr/1" | "startup" | "idle") => Outcome::Unreachable {
            why: "there is no namespace".to_owned(),
        },
        _ => Outcome::Measured,
    };
    if outcome != Outcome::Measured {
        (values, histograms, trials) = Default::default();
    }
    let control = cell.parameters.get("congestion_control").cloned();
    Sample {
        cell: cell.name.clone(),
        stack: stack.to_owned(),
        round,
        at_ms,
        outcome,
        values,
        histograms,
        trials,
        conditions: Conditions {
            congestion_control: control.map(|control| [control.clone(), control]),
            mtu: match (role, cell.parameters.get("mtu").map(String::as_str)) {
                (Role::Kernel, _) if stack == "direct" => None,
                (_, Some("1500")) => Some(1500),
                (Role::Kernel, _) => Some(65_535),
                _ => Some(65_520),
            },
            queue_length: (stack != "direct").then_some(1000),
            busy_before: if random.below(90) == 0 { 0.6 } else { 0.0 },
            steal: if random.below(200) == 0 { 0.04 } else { 0.0 },
            clock_drift_us: random.about(3.0, 0.5),
        },
    }
}

/// Returns a distribution with a tail to the right, and a second mode of slow wake-ups.
fn latencies(p50: f64, random: &mut Random) -> Histogram {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for index in 0..4_000 {
        let slow = if index % 60 == 0 { 2.2 } else { 1.0 };
        let value = random.about(p50 * slow, 0.08);
        let unit = 10f64.powf(value.log10().floor() - 1.0);
        *counts.entry(((value / unit).round() * unit) as u64).or_default() += 1;
    }
    Histogram {
        unit: "us".to_owned(),
        counts: counts
            .into_iter()
            .map(|(value, count)| (value as f64, count))
            .collect(),
    }
}

struct Random(ChaCha8Rng);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0.next_u64() % limit
    }

    /// Returns a value skewed around `centre`: exponentials on both sides, in the logarithm.
    fn about(&mut self, centre: f64, spread: f64) -> f64 {
        let mut exponential = || -(((self.0.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64).ln();
        centre * (spread * (exponential() - exponential())).exp()
    }
}
