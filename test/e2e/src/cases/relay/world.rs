//! Namespaces in a row, and relays in them.
//!
//! ```text
//! sender right --- left relay 0 right --- left relay 1 right --- ... --- left receiver
//!                               leafN --- left leaf N
//! ```
//!
//! Link N of the row is 10.0.N.0/24 and `2001:db8:N::/64`, that of leaf N 10.1.N.0/24 and `2001:db8:100+N::/64`; the one
//! on the left is .1, the one on the right .2.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::{Namespace, add_address, ip, veth};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::case::{Context, Family};
use crate::process::{Process, wait_until};

/// Network namespaces in a row: sender, relays, receiver.
pub(super) struct RelayRow(Vec<Namespace>);

impl RelayRow {
    /// Creates a sender, `relays` relays and a receiver, with links between them.
    pub(super) fn new(relays: u8) -> Result<Self> {
        super::super::tmpfs(std::path::Path::new("/mnt"))?;
        let nodes = (0..relays + 2)
            .map(|_| Namespace::new())
            .collect::<Result<Vec<_>>>()?;
        for ((left, right), link) in nodes.iter().zip(&nodes[1..]).zip(0_u8..) {
            link_up(left, "right", right, (v4(0, link), v6(0, link)))?;
        }
        nodes[0].enter(|| ip("route add 224.0.0.0/4 dev right"))?;
        Ok(Self(nodes))
    }

    pub(super) fn sender(&self) -> &Namespace {
        &self.0[0]
    }

    pub(super) fn relay(&self, number: usize) -> &Namespace {
        &self.0[number + 1]
    }

    pub(super) fn receiver(&self) -> &Namespace {
        &self.0[self.0.len() - 1]
    }

    /// Adds another receiver to an output of the first relay.
    pub(super) fn leaf(&self, number: u8) -> Result<Namespace> {
        let leaf = Namespace::new()?;
        let name = format!("leaf{number}");
        link_up(self.relay(0), &name, &leaf, (v4(1, number), v6(1, number)))?;
        Ok(leaf)
    }
}

/// Returns the address at the left end of link `number`.
pub(super) fn on_the_left(family: Family, number: u8) -> IpAddr {
    family.pick(v4(0, number)(1), v6(0, number)(1))
}

/// Returns the address at the right end of link `number`.
pub(super) fn on_the_right(family: Family, number: u8) -> IpAddr {
    family.pick(v4(0, number)(2), v6(0, number)(2))
}

fn v4(kind: u8, link: u8) -> impl Fn(u8) -> Ipv4Addr {
    move |last| Ipv4Addr::new(10, kind, link, last)
}

fn v6(kind: u8, link: u8) -> impl Fn(u8) -> Ipv6Addr {
    let third = 0x100 * u16::from(kind) + u16::from(link);
    move |last| Ipv6Addr::new(0x2001, 0xdb8, third, 0, 0, 0, 0, last.into())
}

fn link_up(
    left: &Namespace,
    name: &str,
    right: &Namespace,
    (v4, v6): (impl Fn(u8) -> Ipv4Addr + Sync, impl Fn(u8) -> Ipv6Addr + Sync),
) -> Result<()> {
    left.enter(|| veth(name, right, "left"))?;
    for (node, name, last) in [(left, name, 1), (right, "left", 2)] {
        node.enter(|| {
            add_address(name, &format!("{}/24", v4(last)))?;
            add_address(name, &format!("{}/64", v6(last)))
        })?;
    }
    Ok(())
}

/// A running `pontoon relay`, which is killed on drop.
pub(super) struct RunningRelay {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl RunningRelay {
    /// Starts a relay in a namespace, and waits until it forwards.
    pub(super) fn start<T: ToString>(
        context: &Context,
        node: &Namespace,
        options: impl IntoIterator<Item = T>,
    ) -> Result<Self> {
        Self::start_as(command(context)?, node, options)
    }

    /// Starts a relay with a command that selects the user, and waits until it forwards.
    pub(super) fn start_as<T: ToString>(
        mut command: Command,
        node: &Namespace,
        options: impl IntoIterator<Item = T>,
    ) -> Result<Self> {
        let mut options: Vec<String> = options.into_iter().map(|option| option.to_string()).collect();
        eprintln!("+ pontoon relay {}", options.join(" "));
        let stands = stands()?;
        options.extend(["--pid-file".to_owned(), stands.display().to_string()]);
        command
            .arg("relay")
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = node.enter(|| Ok(command.spawn()?))?;
        let output = BufReader::new(child.stdout.take().context("the relay has no pipe")?);
        let mut relay = Self { child, output };
        wait_until("the relay is ready", Duration::from_secs(10), || {
            ensure!(relay.child.try_wait()?.is_none(), "the relay has ended");
            Ok(std::fs::read(&stands).is_ok_and(|text| !text.is_empty()))
        })?;
        Ok(relay)
    }

    /// Starts a relay with these rules as `--rule` options.
    pub(super) fn with_rules(context: &Context, node: &Namespace, rules: &[String]) -> Result<Self> {
        let options = rules.iter().flat_map(|rule| ["--rule".to_owned(), rule.clone()]);
        Self::start(context, node, options)
    }

    /// Requests the relay's counters by SIGUSR1, and returns them.
    pub(super) fn stats(&mut self) -> Result<RelayStats> {
        // The relay may count datagrams that were just sent a moment later, and not all counters at once.
        let start = Instant::now();
        loop {
            std::thread::sleep(Duration::from_millis(10));
            let stats = self.stats_now()?;
            if stats.add_up().is_ok() || start.elapsed() > Duration::from_secs(1) {
                return Ok(stats);
            }
        }
    }

    fn stats_now(&mut self) -> Result<RelayStats> {
        self.signal(Signal::USR1)?;
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "the relay has ended");
        eprint!("< {line}");
        Ok(RelayStats(serde_json::from_str(&line)?))
    }

    /// Requests the counters until `done` returns true.
    pub(super) fn stats_when(
        &mut self,
        what: &str,
        done: impl Fn(&RelayStats) -> bool,
    ) -> Result<RelayStats> {
        let mut last = self.stats()?;
        wait_until(what, Duration::from_secs(10), || {
            last = self.stats()?;
            Ok(done(&last))
        })?;
        Ok(last)
    }

    /// Waits until the supervisor and its workers sleep. Then they have processed all signals and netlink messages
    /// that were sent before the call, as the kernel wakes the receiver before the sender's call returns.
    pub(super) fn wait_until_idle(&self) -> Result<()> {
        wait_until("supervisor and workers sleep", Duration::from_secs(10), || {
            // The supervisor is checked first, as it sends to the workers before it sleeps.
            let mut workers = Vec::new();
            if self.supervisor().sleeps()? {
                workers = self.children()?;
            }
            let asleep = |id: &u32| Process::of(*id).sleeps().is_ok_and(|sleeps| sleeps);
            Ok(!workers.is_empty() && workers.iter().all(asleep))
        })?;
        Ok(())
    }

    /// Returns the supervisor process of the relay.
    pub(super) fn supervisor(&self) -> Process {
        Process::of(self.child.id())
    }

    /// Returns the process ids of the workers.
    pub(super) fn children(&self) -> Result<Vec<u32>> {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        let ids = children.split_whitespace().map(str::parse);
        Ok(ids.collect::<Result<_, _>>()?)
    }

    /// Returns the number of voluntary context switches of the supervisor.
    pub(super) fn waits(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Ok(count
            .context("/proc/PID/status has no line voluntary_ctxt_switches")?
            .trim()
            .parse()?)
    }

    /// Waits until the relay has exited, and returns its exit status.
    pub(super) fn ended(&mut self) -> Result<std::process::ExitStatus> {
        Ok(self.child.wait()?)
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).context("the relay has no process id")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for RunningRelay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command of the program, run as the user of the case.
pub(super) fn command(context: &Context) -> Result<Command> {
    let binary = context.program.binary.as_deref();
    Ok(Command::new(binary.context("there is no program under test")?))
}

/// Returns the path of a file that does not exist, by which the relay reports readiness (`--pid-file`).
fn stands() -> Result<PathBuf> {
    (0..100)
        .map(|number| PathBuf::from(format!("/mnt/stands.{number}")))
        .find(|path| !path.exists())
        .context("too many relays")
}

/// The counters of a relay, as JSON.
pub(super) struct RelayStats(Value);

impl RelayStats {
    /// Returns the number at a JSON pointer.
    pub(super) fn number(&self, pointer: &str) -> u64 {
        self.0
            .pointer(pointer)
            .and_then(Value::as_u64)
            .unwrap_or(u64::MAX)
    }

    /// Returns the string at a JSON pointer.
    pub(super) fn text(&self, pointer: &str) -> &str {
        self.0
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Fails if the number at a JSON pointer is not `wanted`.
    pub(super) fn expect(&self, pointer: &str, wanted: u64) -> Result<()> {
        let number = self.number(pointer);
        ensure!(number == wanted, "{pointer} is {number} instead of {wanted}");
        Ok(())
    }

    /// Fails if counters whose sums must be equal are not.
    pub(super) fn add_up(&self) -> Result<()> {
        let all = |name: &str| self.0[name].as_array().cloned().unwrap_or_default();
        let sum =
            |of: &Value, names: &[&str]| -> u64 { names.iter().filter_map(|name| of[name].as_u64()).sum() };
        let mut matched = 0;
        for interface in all("interfaces") {
            let parts = sum(
                &interface,
                &["matched", "unmatched", "malformed", "checksum", "fragment", "cut"],
            );
            ensure!(interface["datagrams"] == parts, "does not add up: {interface}");
            matched += sum(&interface, &["matched"]);
        }
        let mut received = 0;
        for rule in all("rules") {
            received += sum(&rule, &["datagrams"]);
            for output in rule["outputs"].as_array().into_iter().flatten() {
                let parts = sum(output, &["sent", "expired", "down", "refused", "busy"]);
                ensure!(rule["datagrams"] == parts, "does not add up: {rule}");
            }
        }
        ensure!(
            matched == received,
            "{matched} matched, {received} received by rules"
        );
        Ok(())
    }
}
