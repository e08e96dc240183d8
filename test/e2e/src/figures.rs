//! Measures the system calls and CPU time of vhost-net, compared with the tap and with pasta.
//!
//! `pontoon-e2e figures PONTOON [PASTA]`, as root in a virtual machine of [`crate::boot`], runs iperf3 in both
//! directions, alternating between the stacks. Times are distorted there, so each run also prints the number of
//! system calls, and the busy time of the machine's two CPUs, per gigabit. With `--icount` a second is 10^9
//! instructions of any kind.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use pontoon_netns::ip;

use crate::process;

/// Number of runs of each stack and direction.
const ROUNDS: usize = 7;

/// Number of bytes in one transfer.
const BYTES: u64 = 128 << 20;
/// Size of one transfer in gigabits.
const GIGABITS: f64 = BYTES as f64 * 8.0 / 1e9;

/// The host's gateway, which pasta maps to the host's loopback.
const GATEWAY: &str = "198.51.100.2";

/// Directory of the kernel's tracing file system, by which system calls are counted.
const TRACING: &str = "/sys/kernel/tracing";
/// File by which a histogram of the system calls is configured.
const COUNTER: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/trigger";

/// A histogram trigger that counts system calls by process and number.
const COUNT: &str = "hist:keys=common_pid.execname,id:size=8192";

/// Numbers of read, write, readv and writev on x86-64, by which frames are read and written, and the kernel is
/// notified. Sockets are served by other calls.
const LINK_CALLS: [&str; 4] = ["0", "1", "19", "20"];

/// A stack whose system calls and CPU time are measured.
struct MeasuredStack {
    name: &'static str,
    /// The command that starts the stack, without the program inside.
    command: Vec<String>,
    /// Address at which the guest reaches the host's loopback.
    server: &'static str,
    /// Name of the process that forwards the guest's packets.
    process: &'static str,
}

/// The direction of a transfer: up is from the guest to the host.
#[derive(Clone, Copy)]
enum TransferDirection {
    Up,
    Down,
}

/// Figures of one run of iperf3 over a stack.
struct RunSample {
    mbps: f64,
    link_calls: f64,
    calls: f64,
    busy: f64,
}

/// Name of a figure, and the function that computes it from a sample.
type Figure = (&'static str, fn(&RunSample) -> f64);

const FIGURES: [Figure; 4] = [
    ("Mbit/s", |sample| sample.mbps),
    ("link's calls per Gbit", |sample| sample.link_calls),
    ("all calls per Gbit", |sample| sample.calls),
    ("machine busy, s per Gbit", |sample| sample.busy),
];

pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let (pontoon, pasta) = match arguments {
        [pontoon] => (pontoon, None),
        [pontoon, pasta] => (pontoon, Some(pasta)),
        _ => bail!("usage: pontoon-e2e figures PONTOON [PASTA]"),
    };
    let stacks = stacks(pontoon, pasta);
    prepare()?;
    let mut server = server()?;
    let result = compare(&stacks);
    server.kill()?;
    server.wait()?;
    result.map(|()| true)
}

fn stacks(pontoon: &str, pasta: Option<&String>) -> Vec<MeasuredStack> {
    let ours = |name, vhost_net| MeasuredStack {
        name,
        command: words(&[
            pontoon,
            "run",
            "--quiet",
            "--host-loopback",
            "--vhost-net",
            vhost_net,
            "--",
        ]),
        server: "10.0.2.2",
        process: "pontoon-engine",
    };
    let pasta = pasta.map(|pasta| MeasuredStack {
        name: "pasta",
        command: words(&[
            pasta,
            "--config-net",
            "--quiet",
            "--runas",
            "0",
            "-t",
            "none",
            "-u",
            "none",
            "--",
        ]),
        server: GATEWAY,
        process: "pasta",
    });
    [ours("tap", "off"), ours("vhost-net", "on")]
        .into_iter()
        .chain(pasta)
        .collect()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| word.to_string()).collect()
}

/// Configures an interface with a default route, which pasta copies, and the tracing of system calls.
fn prepare() -> Result<()> {
    for line in [
        "link add up0 type veth peer name up1",
        "addr add 198.51.100.1/24 dev up0",
        "link set up0 up",
        "link set up1 up",
        "route add default via 198.51.100.2",
    ] {
        ip(line)?;
    }
    if !Path::new(COUNTER).exists() {
        process::output(Command::new("mount").args(["-t", "tracefs", "none", TRACING]))?;
    }
    Ok(())
}

fn server() -> Result<Child> {
    let server = Command::new("iperf3")
        .arg("-s")
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run iperf3")?;
    process::wait_until("iperf3 listens", Duration::from_secs(20), || {
        Ok(process::output(Command::new("ss").args(["-ltnH", "sport = :5201"]))?.contains(":5201"))
    })?;
    Ok(server)
}

fn compare(stacks: &[MeasuredStack]) -> Result<()> {
    let mut to = std::io::stdout().lock();
    let mut samples: Vec<[Vec<RunSample>; 2]> = stacks.iter().map(|_| [Vec::new(), Vec::new()]).collect();
    for round in 1..=ROUNDS {
        for way in [TransferDirection::Up, TransferDirection::Down] {
            for (stack, samples) in stacks.iter().zip(&mut samples) {
                let sample = measure(stack, way)
                    .with_context(|| format!("{} {}, round {round}", stack.name, way.name()))?;
                write!(to, "{round} {} {}:", way.name(), stack.name)?;
                let figures = FIGURES
                    .iter()
                    .map(|(name, of)| format!(" {:.3} {name}", of(&sample)));
                writeln!(to, "{}", figures.collect::<Vec<_>>().join(","))?;
                samples[way as usize].push(sample);
            }
        }
    }
    for way in [TransferDirection::Up, TransferDirection::Down] {
        writeln!(
            to,
            "\n{}, medians of {ROUNDS}, and of the ratios to the tap's of the same round",
            way.name()
        )?;
        for (name, of) in FIGURES {
            write!(to, "{name:26}")?;
            let tap = &samples[0][way as usize];
            for (stack, samples) in stacks.iter().zip(&samples) {
                let samples = &samples[way as usize];
                let ratios = samples.iter().zip(tap).map(|(sample, tap)| of(sample) / of(tap));
                let (value, ratio) = (median(samples.iter().map(of)), median(ratios));
                write!(to, "  {} {value:.3} ({ratio:.3})", stack.name)?;
            }
            writeln!(to)?;
        }
    }
    Ok(())
}

fn measure(stack: &MeasuredStack, way: TransferDirection) -> Result<RunSample> {
    let mut command = Command::new("timeout");
    command
        .arg("120")
        .args(&stack.command)
        .args(["iperf3", "-4", "-c", stack.server, "-i", "0", "-f", "m", "-n"])
        .arg(BYTES.to_string())
        .args(way.option())
        .stdin(Stdio::null());
    fs::write(COUNTER, COUNT).context("cannot count system calls")?;
    let before = CpuIdleTime::now()?;
    let text = process::output(&mut command);
    let busy = before.until_now()?;
    let (link_calls, calls) = calls(
        &fs::read_to_string(Path::new(COUNTER).with_file_name("hist"))?,
        stack.process,
    );
    fs::write(COUNTER, format!("!{COUNT}"))?;
    let text = text?;
    ensure!(calls > 0, "{} made no system calls", stack.process);
    let received = text
        .lines()
        .filter(|line| line.ends_with("receiver"))
        .find_map(megabits);
    Ok(RunSample {
        mbps: received.with_context(|| format!("iperf3 reports no receiver:\n{text}"))?,
        link_calls: link_calls as f64 / GIGABITS,
        calls: calls as f64 / GIGABITS,
        busy: busy / GIGABITS,
    })
}

/// Returns the rate in a line of iperf3's output, in Mbit/s.
pub(crate) fn megabits(line: &str) -> Option<f64> {
    line.split("Mbits/sec")
        .next()?
        .split_whitespace()
        .last()?
        .parse()
        .ok()
}

/// Returns the number of system calls of a process in a histogram: read and write calls ([`LINK_CALLS`]), and all.
fn calls(histogram: &str, process: &str) -> (u64, u64) {
    let mut sums = (0, 0);
    // Format: { common_pid: pontoon-engine  [       123], id:          0 } hitcount:        456
    for line in histogram
        .lines()
        .filter(|line| line.contains(&format!("common_pid: {process}")))
    {
        let mut words = line.split_whitespace().rev();
        let count = words
            .next()
            .and_then(|count| count.parse::<u64>().ok())
            .unwrap_or(0);
        let id = words.find(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
        sums.1 += count;
        if id.is_some_and(|id| LINK_CALLS.contains(&id)) {
            sums.0 += count;
        }
    }
    sums
}

/// Idle time of the machine's CPUs at one moment.
struct CpuIdleTime {
    at: Instant,
    idle: f64,
    cpus: f64,
}

impl CpuIdleTime {
    fn now() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        let all = stat
            .lines()
            .next()
            .context("/proc/stat has no line about all CPUs")?;
        // Fields after the name: user, nice, system, idle, iowait, in ticks of 10 ms.
        let ticks = all
            .split_whitespace()
            .skip(4)
            .take(2)
            .map(|field| field.parse::<f64>());
        Ok(Self {
            at: Instant::now(),
            idle: ticks.sum::<Result<f64, _>>()? / 100.0,
            cpus: std::thread::available_parallelism()?.get() as f64,
        })
    }

    /// Returns the busy time of all CPUs since then, in seconds.
    fn until_now(&self) -> Result<f64> {
        let now = Self::now()?;
        let elapsed = now.at.duration_since(self.at).as_secs_f64();
        Ok(elapsed * self.cpus - (now.idle - self.idle))
    }
}

impl TransferDirection {
    fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }

    fn option(self) -> &'static [&'static str] {
        match self {
            Self::Up => &[],
            Self::Down => &["-R"],
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_summed_by_process() {
        let histogram = "# event histogram\n\
            { common_pid: pontoon-engine  [       123], id:          0 } hitcount:        456\n\
            { common_pid: pontoon-engine  [       123], id:         46 } hitcount:         10\n\
            { common_pid: pontoon         [       122], id:          1 } hitcount:          7\n\
            { common_pid: pontoon-engine  [       124], id:         20 } hitcount:          4\n\
            Totals:\n    Hits: 477\n";
        assert_eq!(calls(histogram, "pontoon-engine"), (460, 470));
    }

    #[test]
    fn median_is_the_value_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
    }
}
