//! Cases about multicast routes that a routing daemon has given to the kernel.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::sysctl;

use super::traffic::{Receiver, Sender};
use super::world::{RelayRow, RunningRelay, on_the_left};
use super::{MANY, group, usual};
use crate::case::{Caller, Case, Context, Family};
use crate::process::wait_until;

pub(super) fn cases() -> Vec<Case> {
    Case::both("relay.follows-kernel-routes", 30, follows)
        .map(|case| case.caller(Caller::Root("smcrouted wants to be root")))
        .into()
}

/// Tests that each datagram arrives once, forwarded by the relay and not by the kernel, whose counters of the route
/// still increase.
fn follows(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let wanted = group(family, 1);
    let source = on_the_left(family, 0);
    row.relay(0).enter(|| {
        for interface in ["all", "left", "right"] {
            sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), "0")?;
        }
        Ok(())
    })?;
    let mut relay = RunningRelay::start(context, row.relay(0), ["--follow-kernel-routes"])?;
    std::fs::write(
        "/mnt/smcroute.conf",
        format!(
            "mgroup from left group {0}\nmroute from left source {source} group {0} to right\n",
            wanted.ip()
        ),
    )?;
    let mut daemon = row.relay(0).enter(|| {
        let mut command = Command::new("smcrouted");
        command.args(["-n", "-f", "/mnt/smcroute.conf", "-i", "pontoon"]);
        command.args(["-u", "/mnt/smcroute.sock", "-P", "/mnt/smcroute.pid"]);
        command.spawn().context("cannot run smcrouted")
    })?;
    let to = match family {
        Family::V4 => wanted.ip().to_string(),
        Family::V6 => format!("[{}]", wanted.ip()),
    };
    let result = (|| {
        relay.stats_when("the route is a rule", |stats| {
            stats.text("/rules/0/rule") == format!("left {to}:* from {source} -> right *:*")
        })?;
        let receiver = Receiver::new(row.receiver(), wanted)?;
        Sender::new(row.sender(), wanted, 8)?.send(0..MANY, usual)?;
        receiver.expect(0..MANY, usual)?;
        relay.stats()?.expect("/rules/0/outputs/0/sent", MANY.into())
    })();
    daemon.kill()?;
    daemon.wait()?;
    result?;
    relay.stats_when("the rule is gone with the daemon", |stats| {
        stats.text("/rules/0/rule").is_empty()
    })?;
    // The kernel may forward again after the relay has exited.
    relay.signal(rustix::process::Signal::TERM)?;
    wait_until(
        "the relay has removed its nftables table",
        Duration::from_secs(5),
        || {
            let tables = row
                .relay(0)
                .enter(|| crate::process::output(Command::new("nft").args(["list", "tables"])))?;
            Ok(!tables.contains("pontoon_relay"))
        },
    )?;
    ensure!(relay.ended()?.success(), "the relay's exit status is not 0");
    Ok(())
}
