//! Cases about `pontoon relay` run by a user without privileges.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Result;
use rustix::process::geteuid;

use super::traffic::{Receiver, Sender};
use super::world::{RelayRow, RunningRelay, command};
use super::{MANY, group, onward, usual};
use crate::case::{Case, Context, Family};

pub(super) fn cases() -> Vec<Case> {
    let both = [
        Case::both("relay.unprivileged", 30, plain),
        Case::both("relay.unprivileged-super-frames", 30, super_frames),
    ];
    both.into_iter().flatten().collect()
}

/// Returns the command of the program without privileges: as another user, or, if the caller cannot change its user,
/// as the same user in a user namespace that does not own the network namespace.
fn unprivileged_command(context: &Context) -> Result<Command> {
    if context.program.drop_privileges {
        return context.program.command();
    }
    let mut command = command(context)?;
    if geteuid().is_root() {
        command.uid(1000).gid(1000);
    }
    Ok(command)
}

fn start(context: &Context, row: &RelayRow, rule: String) -> Result<RunningRelay> {
    let mut relay = RunningRelay::start_as(
        unprivileged_command(context)?,
        row.relay(0),
        ["--rule".to_owned(), rule],
    )?;
    let stats = relay.stats()?;
    anyhow::ensure!(
        stats.text("/interfaces/0/state") == "UDP sockets",
        "it is not without privilege: {}",
        stats.text("/interfaces/0/state")
    );
    Ok(relay)
}

fn plain(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(family, 1), group(family, 2));
    let mut relay = start(context, &row, onward(from, to))?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let sender = Sender::new(row.sender(), from, 8)?;
    sender.send(0..MANY, usual)?;
    receiver.expect(0..MANY, usual)?;
    relay.stats()?.add_up()
}

fn super_frames(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(family, 1), group(family, 2));
    let mut relay = start(context, &row, onward(from, to))?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let sender = Sender::new(row.sender(), from, 8)?;
    sender.send_together(0..MANY, 1400, 32)?;
    receiver.expect(0..MANY, usual)?;
    relay.stats()?.add_up()
}
