//! Cases about the cost of an idle program, and of its start.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{expect, tcp_server};
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::process::QuietMachine;

const PSS_LIMIT_KIB: u64 = 16 * 1024;

/// Limit on the time to start: half of the fastest start of pasta on the machines where it was measured (60 to 88
/// ms).
const START_LIMIT: Duration = Duration::from_millis(30);

pub(super) fn cases() -> Vec<Case> {
    let modes: [&'static str; 2] = ["event", "hybrid"];
    let mut cases: Vec<Case> = modes
        .into_iter()
        .map(|mode| {
            Case::new(&format!("idle.no-wake-ups.{mode}"), 30, move |context| {
                idle(context, mode)
            })
            .alone()
        })
        .collect();
    cases.push(Case::new("idle.start-and-end", 30, start).alone());
    cases.into_iter().map(Case::pontoon_only).collect()
}

/// Tests that the program, after some traffic, uses no CPU time for 5 s and little memory, and that no process has a wakeup,
/// except the supervisor, which looks every 5 s whether the engine hangs.
fn idle(context: &Context, mode: &str) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let line = format!("$E2E guest tcp {server} fetch 0 1 16777216; sleep 1000");
    let mut running = network.run().options(["--io", mode]).shell(&line).spawn()?;
    expect(&running.line()?, "ok")?;
    // The timers of the closed connection have to expire before the measurement.
    std::thread::sleep(Duration::from_secs(3));
    let ours = context.program.processes();
    ensure!(
        ours.len() >= 2,
        "{} processes: engine and supervisor were expected",
        ours.len()
    );
    let supervisor = context.program.supervisor()?;
    let looks = |process| if process == supervisor { 2 } else { 0 };
    let activity = || {
        ours.iter()
            .map(|process| process.activity())
            .collect::<Result<Vec<_>>>()
    };
    let before = activity()?;
    // The test measures that nothing happens during this time.
    std::thread::sleep(Duration::from_secs(5));
    let after = activity()?;
    let is_idle = ours
        .iter()
        .zip(before.iter().zip(&after))
        .all(|(process, (before, after))| after.0 <= before.0 + looks(*process) && after.1 == before.1);
    ensure!(
        is_idle,
        "(wake-ups, CPU ticks) of each process went from {before:?} to {after:?} in 5 s"
    );
    let pss: u64 = ours
        .iter()
        .map(|process| process.number("smaps_rollup", "Pss"))
        .sum::<Result<u64>>()?;
    eprintln!("PSS: {pss} KiB");
    ensure!(pss <= PSS_LIMIT_KIB, "the PSS of the program is {pss} KiB");
    Ok(())
}

/// Tests the shortest of eleven starts against [`START_LIMIT`].
fn start(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let machine = QuietMachine::begin()?;
    let mut times = Vec::new();
    for _ in 0..11 {
        let start = Instant::now();
        network.run().command(["true"]).text()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    eprintln!("{times:?}");
    machine.judge(
        times[0] <= START_LIMIT,
        &format!(
            "the fastest of 11 starts took {:?} until the end of `true`",
            times[0]
        ),
    )
}
