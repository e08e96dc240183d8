//! Cases about the audit file of `pontoon vm`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::{AUDIT, check_bytes, check_ends, check_numbers, counting_server, records};
use crate::carrier::Framing;
use crate::case::{Case, Context};
use crate::cases::{expect, tmpfs, vm};
use crate::guest::tcp;
use crate::machine::TapGuest;
use crate::process;
use pontoon_vm_peer::tap_bridge::Faults;

/// Number of connections before and after the kill of the engine.
const FLOWS: usize = 500;

pub(super) fn cases() -> Vec<Case> {
    let one = Framing::ALL.map(|framing| (format!("events.vm.{framing}"), framing, "1"));
    let two = ("events.vm.two-workers".to_owned(), Framing::VhostUser(2), "2");
    one.into_iter()
        .chain([two])
        .map(|(name, framing, workers)| Case::new(&name, 60, move |context| run(context, framing, workers)))
        .collect()
}

/// Tests that the records account for all flows of a virtual machine, whose engine is killed between them.
fn run(context: &Context, framing: Framing, workers: &str) -> Result<()> {
    tmpfs(Path::new("/run"))?;
    let options = ["--audit", AUDIT, "--workers", workers];
    let (network, mut vm) = vm::start(context, framing, &options)?;
    let (server, seen) = counting_server(&network)?;
    let guest = TapGuest::of(&vm, Faults::NONE)?;
    guest.dhcp4()?;
    let count = FLOWS.to_string();
    let opens = || {
        guest
            .namespace
            .enter(|| tcp::command(server, &["send-port", &count]))
    };
    expect(&opens()?, &count)?;
    context.program.kill_engine()?;
    process::wait_until("the guest has a network again", Duration::from_secs(10), || {
        let one = guest
            .namespace
            .enter(|| tcp::command(server, &["send-port", "1"]))?;
        Ok(one == "1")
    })?;
    expect(&opens()?, &count)?;
    vm.signal(Signal::TERM)?;
    ensure!(vm.wait()?.success(), "the exit status of pontoon vm is not 0");

    let records = records(AUDIT)?;
    let missing = check_numbers(&records, 1)?;
    let (opened, closed, lost) = check_ends(&records)?;
    let (compared, others) = check_bytes(&records, &seen)?;
    eprintln!(
        "{opened} opened, {closed} closed ({compared} in order, {others:?}), {lost} lost, {missing} missing"
    );
    ensure!(missing == 0, "{missing} records are missing");
    // The guest may have received the end of a connection that has no record yet when the engine is killed or ends.
    let ended = others.get("ended").copied().unwrap_or_default();
    ensure!(
        compared + lost + ended > 2 * FLOWS,
        "{compared} flows have ended in order"
    );
    Ok(())
}
