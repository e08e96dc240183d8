//! Hosts that want groups, and nobody but the relay who hears them.

use std::time::Duration;

use anyhow::Result;

use super::traffic::{Receiver, Sender};
use super::world::{Relay, Row};
use super::{group, usual};
use crate::case::{Case, Context, Family};
use crate::process::wait_until;

pub(super) fn cases() -> Vec<Case> {
    let proxied = Case::both("relay.proxy", 60, proxy);
    let asked = Case::both("relay.proxy-asks", 60, asks);
    proxied.into_iter().chain(asked).collect()
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

/// Who has wanted a group since before the relay was there says so only when it is asked.
fn asks(context: &Context, family: Family) -> Result<()> {
    let row = Row::new(1)?;
    let wanted = group(family, 1);
    let receiver = Receiver::new(row.receiver(), wanted)?;
    std::thread::sleep(UNASKED);
    let mut relay = Relay::start(context, row.relay(0), ["--proxy", "left -> right"])?;
    wait_until("the host has answered", ANSWER, || {
        Ok(relay
            .stats()?
            .text("/rules/0/rule")
            .contains(&wanted.ip().to_string()))
    })?;
    let sender = Sender::new(row.sender(), wanted, 8)?;
    sender.send(0..100, usual)?;
    receiver.expect(0..100, usual)
}

/// How long a host tells of what it wants of its own accord: Linux twice within a second each (RFC 3376 section 8.11,
/// RFC 3810 section 9.11).
const UNASKED: Duration = Duration::from_secs(3);

/// A host may take 10 seconds (RFC 3376 section 8.3), and the machine is a busy one.
const ANSWER: Duration = Duration::from_secs(20);

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
