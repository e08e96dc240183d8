//! Hosts that want groups, and nobody but the relay who hears them.

use std::time::Duration;

use anyhow::Result;

use super::traffic::{Receiver, Sender};
use super::world::{Relay, Row};
use super::{group, usual};
use crate::case::{Case, Context, Family};
use crate::process::wait_until;

pub(super) fn cases() -> Vec<Case> {
    Case::both("relay.proxy", 60, proxy).into()
}

/// A wish makes a rule, and the end of the last wish ends it.
fn proxy(context: &Context, family: Family) -> Result<()> {
    let row = Row::new(1)?;
    let leaf = row.leaf(0)?;
    let wanted = group(family, 1);
    let mut relay = Relay::start(context, row.relay(0), ["--proxy", "left -> right, leaf0"])?;
    let sender = Sender::new(row.sender(), wanted, 8)?;
    let first = Receiver::new(row.receiver(), wanted)?;
    let rule = |outputs: &str| match family {
        Family::V4 => format!("left {}:* -> {outputs}", wanted.ip()),
        Family::V6 => format!("left [{}]:* -> {outputs}", wanted.ip()),
    };
    relay.stats_when("there is a rule", |stats| {
        stats.text("/rules/0/rule") == rule("right *:*")
    })?;
    joined(&row, &wanted.ip().to_string(), true)?;
    sender.send(0..100, usual)?;
    first.expect(0..100, usual)?;

    let second = Receiver::new(&leaf, wanted)?;
    relay.stats_when("it leads to both", |stats| {
        stats.text("/rules/0/rule") == rule("leaf0 *:*, right *:*")
    })?;
    sender.send(0..100, usual)?;
    first.expect(0..100, usual)?;
    second.expect(0..100, usual)?;

    drop(first);
    relay.stats_when("it leads to one", |stats| {
        stats.text("/rules/0/rule") == rule("leaf0 *:*")
    })?;
    drop(second);
    relay.stats_when("the rule is gone", |stats| stats.text("/rules/0/rule").is_empty())?;
    joined(&row, &wanted.ip().to_string(), false)
}

/// Whether the relay's kernel has joined it upstream.
fn joined(row: &Row, group: &str, wanted: bool) -> Result<()> {
    wait_until("the kernel has joined, or left", Duration::from_secs(5), || {
        let mut ip = std::process::Command::new("ip");
        let shown = row
            .relay(0)
            .enter(|| crate::process::output(ip.args(["maddress", "show", "left"])))?;
        Ok(shown.contains(group) == wanted)
    })
    .map(drop)
}
