//! Cases about engines that hang, and about engines that do not run for another reason.

use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::super::{expect, talk, tcp_server};
use crate::case::{Case, Context, Family};
use crate::inject::StoppedTurn;
use crate::network::Network;
use crate::process::{self, Stopwatch};
use crate::run::{RunningProgram, own_path};

pub(super) fn cases() -> [Case; 2] {
    [
        Case::new("lifecycle.engine-hangs", 60, hangs).waiting(),
        Case::new("lifecycle.engine-stopped", 60, stopped).waiting(),
    ]
}

/// Longest time until an engine that hangs is replaced: the supervisor looks every 5 s, and counts two whole intervals.
const REPLACED: Duration = Duration::from_secs(16);

/// The same on a loaded machine.
const REPLACED_UNDER_LOAD: Duration = Duration::from_secs(30);

/// Time in which a hang would be detected.
const WATCHED: Duration = Duration::from_secs(21);

/// Stops the engine in the turn that handles a connect of the guest.
fn stop_in_turn(context: &Context, running: &mut RunningProgram, connect: &str) -> Result<StoppedTurn> {
    StoppedTurn::take(context.program.engine()?, || {
        running.send_line(&format!("{connect} >/dev/null 2>&1 &"))
    })
}

/// Tests that an engine in an endless loop is replaced, and that the next engine serves the guest.
fn hangs(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let connect = format!("{} guest tcp {server} connects 1", own_path());
    let talk = talk()?;
    let run = network.run().options(["--io", "event"]).talk_to(&talk);
    let mut running = run.shell("echo listening; exec sh").spawn()?.listening()?;
    let engine = context.program.engine()?;
    stop_in_turn(context, &mut running, &connect)?.hang()?;
    let hang = Stopwatch::start();
    process::wait_until("another engine runs", REPLACED_UNDER_LOAD, || {
        Ok(context.program.engine().is_ok_and(|other| other != engine))
    })?;
    let took = hang.within(REPLACED, REPLACED_UNDER_LOAD)?;
    eprintln!("another engine ran after {took:?}");
    expect(&running.ask(&connect)?, "ok")?;
    let log = std::fs::read_to_string(&talk)?;
    ensure!(
        log.contains("the engine: a worker has been in one turn of its loop for 10s; restarting it"),
        "no line has the reason:\n{log}"
    );
    Ok(())
}

/// Tests that an engine that was stopped in a turn by a signal is not replaced, and serves the guest afterwards.
fn stopped(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let connect = format!("{} guest tcp {server} connects 1", own_path());
    let run = network.run().options(["--io", "event"]);
    let mut running = run.shell("echo listening; exec sh").spawn()?.listening()?;
    let engine = context.program.engine()?;
    stop_in_turn(context, &mut running, &connect)?.leave_stopped()?;
    // The test is that nothing happens during this time.
    std::thread::sleep(WATCHED);
    ensure!(
        context.program.engine()? == engine,
        "the stopped engine was replaced"
    );
    engine.signal(Signal::CONT)?;
    expect(&running.ask(&connect)?, "ok")?;
    ensure!(context.program.engine()? == engine, "the engine was replaced");
    Ok(())
}
