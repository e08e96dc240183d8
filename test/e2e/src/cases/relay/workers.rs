//! Cases about the worker processes of the relay, which forward packets.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::traffic::{Receiver, Sender};
use super::world::{RelayRow, RunningRelay, command};
use super::{MANY, group, onward, usual};
use crate::case::{Case, Context, Family};
use crate::cases::sandbox;
#[cfg(target_arch = "x86_64")]
use crate::inject::{CallResult, TracedProcess};
#[cfg(target_arch = "x86_64")]
use crate::process::Process;
use crate::process::Stopwatch;

pub(super) fn cases() -> Vec<Case> {
    let both = [
        Case::both("relay.killed-worker-is-restarted", 30, restarted),
        Case::both("relay.several-workers", 30, several),
        Case::both("relay.overload-counters-add-up", 30, overload),
    ];
    let one = [
        Case::new("relay.workers-have-no-privileges", 20, nothing),
        #[cfg(target_arch = "x86_64")]
        Case::new("relay.workers-cannot-open-descriptors", 20, refused),
        Case::new("relay.require-sandbox", 20, required),
    ];
    both.into_iter().flatten().chain(one).collect()
}

/// Returns the process id of the first worker.
pub(super) fn worker(relay: &mut RunningRelay) -> Result<Pid> {
    let pid = relay.stats()?.number("/workers/0/pid");
    Pid::from_raw(i32::try_from(pid)?).context("there is no worker")
}

/// Longest time from the exit of a worker until its successor forwards, on a machine with idle CPUs.
const RESTARTED: Duration = Duration::from_millis(100);

/// Longest time from the exit of a worker until its successor forwards, on a loaded machine.
const RESTARTED_UNDER_LOAD: Duration = Duration::from_secs(2);

/// Tests that a killed worker is restarted within [`RESTARTED`], with its rules and counters.
fn restarted(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(family, 1), group(family, 2));
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let sender = Sender::new(row.sender(), from, 8)?;
    for round in 0..3_u32 {
        sender.send(0..MANY, usual)?;
        receiver.expect(0..MANY, usual)?;
        let first = worker(&mut relay)?;
        // A worker that has run for less than 50 ms would be restarted after a back-off.
        std::thread::sleep(Duration::from_millis(100));
        let restart = Stopwatch::start();
        kill_process(first, Signal::KILL)?;
        sender.send(0..1, usual)?;
        let datagram = receiver.next(Duration::from_secs(5))?;
        ensure!(datagram.is_some(), "no datagram arrived after the restart");
        restart.within(RESTARTED, RESTARTED_UNDER_LOAD)?;
        let stats = relay.stats_when("the counters add up", |stats| stats.add_up().is_ok())?;
        stats.expect("/workers/0/restarts", u64::from(round + 1))?;
        stats.expect(
            "/rules/0/outputs/0/sent",
            u64::from(round + 1) * u64::from(MANY + 1),
        )?;
        ensure!(
            stats.number("/workers/0/pid") != first.as_raw_nonzero().get() as u64,
            "the same process"
        );
    }
    Ok(())
}

/// Tests several workers: each flow is processed by one of them, and all datagrams arrive.
fn several(context: &Context, family: Family) -> Result<()> {
    const FLOWS: u16 = 16;
    let row = RelayRow::new(1)?;
    let rules = (1..=FLOWS).map(|number| onward(group(family, number), group(family, 100 + number)));
    let options = rules
        .flat_map(|rule| ["--rule".to_owned(), rule])
        .chain(["--workers".to_owned(), "3".to_owned()]);
    let mut relay = RunningRelay::start(context, row.relay(0), options)?;
    for number in 1..=FLOWS {
        let receiver = Receiver::new(row.receiver(), group(family, 100 + number))?;
        Sender::new(row.sender(), group(family, number), 8)?.send(0..200, usual)?;
        receiver.expect(0..200, usual)?;
    }
    let stats = relay.stats()?;
    stats.add_up()?;
    stats.expect("/interfaces/0/packets", u64::from(FLOWS) * 200)
}

/// Tests a stopped worker whose ring overflows: each lost datagram is counted.
fn overload(context: &Context, family: Family) -> Result<()> {
    const FLOOD: u32 = 20_000;
    let row = RelayRow::new(1)?;
    let (from, to) = (group(family, 1), group(family, 2));
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let sender = Sender::new(row.sender(), from, 8)?;
    let worker = worker(&mut relay)?;
    kill_process(worker, Signal::STOP)?;
    sender.send(0..FLOOD, |_| 100)?;
    let full = relay.stats()?;
    let dropped = full.number("/interfaces/0/kernel_dropped");
    full.expect("/interfaces/0/kernel_packets", FLOOD.into())?;
    ensure!(
        dropped > 0,
        "the kernel dropped no datagram, so the ring did not overflow"
    );
    let counted = std::thread::scope(|scope| {
        let counting = scope.spawn(|| receiver.count(|_| 100));
        kill_process(worker, Signal::CONT)?;
        counting
            .join()
            .unwrap_or_else(|_| anyhow::bail!("a thread panicked"))
    })?;
    let stats = relay.stats()?;
    stats.add_up()?;
    let sent = stats.number("/rules/0/outputs/0/sent");
    ensure!(
        sent + stats.number("/interfaces/0/kernel_dropped") == u64::from(FLOOD),
        "{sent} sent and {dropped} dropped are not {FLOOD}"
    );
    // The receiver's buffer may have been too small for the burst, which is not a loss of the relay.
    let missed = u64::from(receiver.missed()?);
    ensure!(
        u64::from(counted) + missed == sent,
        "{counted} received, {missed} missed, {sent} sent"
    );
    Ok(())
}

/// Tests the sandbox of a worker: no capability, no means to gain one, no file, and a list of few system calls.
fn nothing(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let rule = onward(group(Family::V4, 1), group(Family::V4, 2));
    let options = ["--rule", &rule, "--proxy", "left -> right"];
    let mut relay = RunningRelay::start(context, row.relay(0), options)?;
    for process in ["workers/0", "querier"] {
        let pid = relay.stats()?.number(&format!("/{process}/pid"));
        let pid = u32::try_from(pid)?;
        sandbox::given_up(pid)?;
        sandbox::limited(pid)?;
        relay.stats()?.expect(&format!("/{process}/sandbox_refused"), 0)?;
    }
    Ok(())
}

/// Tests an attacker who controls a worker: system calls that open descriptors are refused and counted, also those
/// that an engine may make, and the worker continues.
#[cfg(target_arch = "x86_64")]
fn refused(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(Family::V4, 1), group(Family::V4, 2));
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    let pid = worker(&mut relay)?.as_raw_nonzero().get().unsigned_abs();
    let mut traced = TracedProcess::take(Process::of(pid))?;
    let (text, here) = (traced.text(), i64::from(libc::AT_FDCWD).cast_unsigned());
    let internet = [libc::AF_INET as u64, libc::SOCK_DGRAM as u64, 0];
    let option = |level: libc::c_int, name: libc::c_int| {
        [u64::MAX, level.unsigned_abs().into(), name.unsigned_abs().into()]
    };
    let all_frames = option(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP);
    let attempts: [(libc::c_long, &[u64], &str); 9] = [
        (libc::SYS_openat, &[here, text, 0], "/etc/passwd"),
        (libc::SYS_socket, &internet, ""),
        (libc::SYS_connect, &[3, text, 16], ""),
        (libc::SYS_bind, &[3, text, 16], ""),
        (libc::SYS_clone, &[libc::CLONE_THREAD as u64], ""),
        (libc::SYS_kill, &[u64::MAX, libc::SIGTERM as u64], ""),
        (libc::SYS_setsockopt, &all_frames, ""),
        (
            libc::SYS_setsockopt,
            &option(libc::SOL_SOCKET, libc::SO_DETACH_FILTER),
            "",
        ),
        (
            libc::SYS_setsockopt,
            &option(libc::SOL_PACKET, libc::PACKET_FANOUT),
            "",
        ),
    ];
    for (number, arguments, text) in attempts {
        let answer = traced.call(number, arguments, text)?;
        ensure!(
            answer == CallResult::Result(-i64::from(libc::EPERM)),
            "call {number}: {answer:?}"
        );
    }
    traced.release()?;
    let receiver = Receiver::new(row.receiver(), to)?;
    Sender::new(row.sender(), from, 8)?.send(0..MANY, usual)?;
    receiver.expect(0..MANY, usual)?;
    relay.stats_when("refusals are counted", |stats| {
        stats.number("/workers/0/sandbox_refused") == attempts.len() as u64
    })?;
    relay.stats()?.expect("/workers/0/restarts", 0)
}

/// Tests `--sandbox required` on a host that refuses a layer: one line reports the reason, and the relay does not
/// report readiness.
fn required(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let rule = onward(group(Family::V4, 1), group(Family::V4, 2));
    for layer in ["namespaces", "landlock", "seccomp"] {
        let mut command = command(context)?;
        command
            .env("PONTOON_DISABLE", layer)
            .args(["relay", "--rule", &rule, "--require-sandbox", "--pid-file"])
            .arg("/mnt/never");
        let output = row.relay(0).enter(|| Ok(command.output()?))?;
        let stderr = String::from_utf8(output.stderr)?;
        ensure!(
            output.status.code() == Some(1),
            "without {layer}: {}\n{stderr}",
            output.status
        );
        let errors: Vec<&str> = stderr
            .lines()
            .filter(|line| line.starts_with("error: "))
            .collect();
        ensure!(
            errors.len() == 1 && errors[0].contains("sandbox") && errors[0].contains(layer),
            "not one line:\n{stderr}"
        );
        ensure!(
            !std::path::Path::new("/mnt/never").exists(),
            "it reported readiness"
        );
    }
    let options = ["--rule", &rule, "--require-sandbox"];
    let mut relay = RunningRelay::start(context, row.relay(0), options)?;
    relay.stats()?.expect("/workers/0/restarts", 0)
}
