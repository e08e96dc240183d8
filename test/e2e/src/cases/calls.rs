//! Cases that count the engine's system calls.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::{expect, tcp_server};
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::process::Process;
use crate::run::{RunningProgram, own_path};
use crate::strace::Strace;

pub(super) fn cases() -> Vec<Case> {
    Case::both("calls.per-syn-with-1000-pending", 30, per_syn)
        .map(Case::alone)
        .map(Case::pontoon_only)
        .into_iter()
        .collect()
}

/// Tests that a transaction (connect, request, response, close) takes as many system calls with a thousand pending
/// connects as without.
fn per_syn(context: &Context, family: Family) -> Result<()> {
    const PENDING: usize = 1000;
    let network = Network::new(context)?;
    let server = tcp_server(&network, family)?;
    super::tmpfs(Path::new("/mnt"))?;
    // With hybrid pacing the number of epoll_wait calls depends on the speed of the other processes.
    let mut guest = network.run().options(["--io", "event"]).command(["sh"]).spawn()?;
    expect(&guest.ask("echo ready")?, "ready")?;
    let engine = context.program.engine()?;
    let without = calls_per_syn(engine, &mut guest, server)?;
    let nowhere = family.pick([203, 0, 113, 1].into(), "2001:db8:ffff::1".parse()?);
    let pending = format!("{} guest raw pending {nowhere} {PENDING}", own_path());
    expect(&guest.ask(&pending)?, "ok")?;
    let descriptors = engine.descriptors()?;
    ensure!(
        descriptors >= PENDING,
        "{descriptors} descriptors: not all are pending"
    );
    let with = calls_per_syn(engine, &mut guest, server)?;
    eprintln!("{without} calls per SYN, then {with}");
    ensure!(
        (with / without - 1.0).abs() <= 0.02,
        "{without} calls per SYN, then {with}"
    );
    Ok(())
}

/// Returns the median of five measurements, as frames that a busy machine delays arrive in other bursts.
fn calls_per_syn(engine: Process, guest: &mut RunningProgram, server: SocketAddr) -> Result<f64> {
    const CONNECTS: u32 = 200;
    const ROUNDS: usize = 5;
    let line = format!("{} guest tcp {server} connects {CONNECTS}", own_path());
    // The first transaction makes host and guest resolve the addresses of their neighbours.
    expect(&guest.ask(&line)?, "ok")?;
    let mut counts = Vec::new();
    for _ in 0..ROUNDS {
        let strace = Strace::attach(engine, &["-c"], Path::new("/mnt/calls"))?;
        expect(&guest.ask(&line)?, "ok")?;
        counts.push(total(&strace.finish()?)?);
    }
    counts.sort_unstable();
    Ok(f64::from(counts[ROUNDS / 2]) / f64::from(CONNECTS))
}

/// Returns the total number of calls in a table of `strace -c`.
fn total(table: &str) -> Result<u32> {
    eprint!("{table}");
    let mut lines = table.lines();
    let line = lines
        .find(|line| line.ends_with(" total"))
        .context("the table of strace has no line with the total")?;
    Ok(line
        .split_whitespace()
        .nth(3)
        .context("the total of strace has no number of calls")?
        .parse()?)
}
