//! Cases with thousands of flows.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::sysctl;

use super::{expect, talk, tcp_server};
use crate::case::{Case, Context, Family};
use crate::counters::{self, Counters};
use crate::network::Network;
use crate::process::{self, QuietMachine};

const FLOWS: &str = "10000";

/// Limit on resident memory in KiB: the pool (32 MiB), the flow slots, and the program.
const RSS_LIMIT_KIB: u64 = 96 * 1024;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![Case::new("load.10000-stalled-flows", 270, stalled)];
    cases.extend(Case::both("load.1000-pending-connects", 90, pending));
    cases.extend(Case::both("load.10000-flows-both-ways", 90, both_ways));
    cases.into_iter().map(Case::alone).collect()
}

/// Tests that a thousand pending connects do not slow the round trips of another flow.
fn pending(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, family)?;
    // The far end does not forward, so packets that are routed through it are never answered.
    let nowhere = SocketAddr::new(
        family.pick([203, 0, 113, 1].into(), "2001:db8:ffff::1".parse()?),
        80,
    );
    let words = [
        "load",
        "pending",
        &server.to_string(),
        &nowhere.to_string(),
        "1000",
    ];
    let machine = QuietMachine::begin()?;
    let text = network.run().guest(words).text()?;
    within_15_percent(&machine, text.trim_end())
}

/// Checks two times in nanoseconds, `BEFORE AFTER`: the second may be at most 15 % longer.
fn within_15_percent(machine: &QuietMachine, text: &str) -> Result<()> {
    let (before, after) = text
        .split_once(' ')
        .context("the client did not print two times")?;
    let (before, after): (f64, f64) = (before.parse()?, after.parse()?);
    eprintln!("round trip, p50: {before} ns, then {after} ns");
    machine.judge(
        after <= before * 1.15,
        &format!("round trip p50 went from {before} to {after} ns"),
    )
}

/// Tests ten thousand flows on which the guest sends as fast as possible, half over IPv4 and half over IPv6, while
/// the server reads nothing for 60 s; afterwards every byte arrives.
fn stalled(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    // With the default limits the kernel's buffers would hold all data of 10,000 flows, up to the limit of their sum.
    sysctl("net/ipv4/tcp_wmem", "4096 16384 32768")?;
    network
        .server()
        .enter(|| sysctl("net/ipv4/tcp_rmem", "4096 16384 32768"))?;
    let (v4, v6) = (
        tcp_server(&network, Family::V4)?,
        tcp_server(&network, Family::V6)?,
    );
    // Data for which there was no room is retransmitted when the guest's timer expires, by default up to 120 s later.
    // Linux 6.15 has a limit for that (and counts retries against it); on an older kernel the test only takes longer.
    let line = format!(
        "cd /proc/sys/net/ipv4; echo 255 >tcp_retries2; echo 20000 2>/dev/null >tcp_rto_max_ms; \
         $E2E guest load stalled {v4} {v6} {FLOWS} 60 262144"
    );
    let talk = talk()?;
    let run = network.run().options([counters::LOGGED]).talk_to(&talk);
    let machine = QuietMachine::begin()?;
    let mut running = run.shell(&line).spawn()?;
    let log = || std::fs::read_to_string(&talk).unwrap_or_default();
    let line = running.line().with_context(log)?;
    let resident = context.program.resident_kib()?;
    eprintln!("{line}\nresident: {resident} KiB");
    ensure!(
        resident <= RSS_LIMIT_KIB,
        "{resident} KiB resident with stalled flows"
    );
    expect(&running.finish().with_context(log)?, "ok")?;
    if context.program.binary.is_some() {
        let exhausted = Counters::read(&talk)?.count("tcp_pool_empty");
        ensure!(exhausted > 0, "the pool was never exhausted");
    }
    within_15_percent(
        &machine,
        line.strip_prefix("stalled ")
            .context("the client printed no times")?,
    )
}

/// Tests ten thousand simultaneous connections that transfer data in both directions, and that no flow is left
/// afterwards.
fn both_ways(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, family)?.to_string();
    let line = format!(
        "$E2E guest tcp {server} connects 1; echo ready; sleep 1; \
         $E2E guest load both-ways {server} {FLOWS} 65536 && sleep 30"
    );
    let mut running = network.run().shell(&line).spawn()?;
    expect(&running.line()?, "ok")?;
    expect(&running.line()?, "ready")?;
    let descriptors = || -> Result<usize> {
        context
            .program
            .processes()
            .iter()
            .map(|process| process.descriptors())
            .sum()
    };
    let before = descriptors()?;
    expect(&running.line()?, "open")?;
    if context.program.binary.is_some() {
        let open = descriptors()?;
        ensure!(open >= 10_000, "{open} descriptors with all flows open");
    }
    running.send_line("counted")?;
    expect(&running.line()?, "ok")?;
    process::wait_until(
        "the engine has closed the descriptors of all flows",
        Duration::from_secs(10),
        || Ok(descriptors()? <= before),
    )?;
    Ok(())
}
