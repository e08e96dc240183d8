//! Cases about `pontoon relay`, between network namespaces.

mod control;
mod failures;
mod frames;
mod kernel;
mod load;
mod proxy;
mod reload;
mod rules;
mod traffic;
mod unprivileged;
mod workers;
mod world;

use std::net::SocketAddr;

use anyhow::{Result, ensure};

use crate::case::{Case, Context, Family};
use traffic::{Receiver, Sender};
use world::{RelayRow, RunningRelay};

pub(super) fn cases() -> Vec<Case> {
    let topics = [
        control::cases,
        failures::cases,
        frames::cases,
        kernel::cases,
        load::cases,
        proxy::cases,
        reload::cases,
        rules::cases,
        unprivileged::cases,
        workers::cases,
    ];
    let here = [
        Case::both("relay.one-hop", 30, one_hop),
        Case::both("relay.every-size", 60, every_size),
        Case::both("relay.chain-of-3", 30, chain),
        Case::both("relay.tree-1-to-3", 30, tree),
        Case::both("relay.64-mixed-flows", 60, mixed),
        Case::both("relay.50-outputs", 60, outputs),
    ];
    here.into_iter()
        .flatten()
        .chain(topics.iter().flat_map(|cases| cases()))
        .map(Case::pontoon_only)
        .collect()
}

/// Returns multicast group `number` of a family, with port 5000 + `number`.
fn group(family: Family, number: u16) -> SocketAddr {
    let address = family.pick(
        [239, 1, 1, number as u8].into(),
        [0xff1e, 0, 0, 0, 0, 0, 0, number].into(),
    );
    SocketAddr::new(address, 5000 + number)
}

/// Returns a rule that relays from group `from` on interface `left` to group `to` on interface `right`.
fn onward(from: SocketAddr, to: SocketAddr) -> String {
    format!("left {from} -> right {to}")
}

/// Number of datagrams that most cases send.
const MANY: u32 = 2000;

/// Length of the datagrams that most cases send, in bytes; the argument is the datagram's number.
fn usual(_: u32) -> usize {
    1400
}

fn one_hop(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(family, 1), group(family, 2));
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let sender = Sender::new(row.sender(), from, 8)?;
    sender.send(0..MANY, usual)?;
    receiver.expect(0..MANY, usual)?;
    let stats = relay.stats()?;
    stats.add_up()?;
    stats.expect("/rules/0/outputs/0/sent", MANY.into())?;
    stats.expect("/rules/0/outputs/0/bytes", u64::from(MANY) * 1400)?;
    stats.expect("/interfaces/0/kernel_packets", MANY.into())?;
    stats.expect("/interfaces/0/kernel_dropped", 0)?;
    let sends = stats.number("/rules/0/outputs/0/sends");
    ensure!(
        sends < u64::from(MANY) / 2,
        "the relay made {sends} send calls, so datagrams were not sent together"
    );
    Ok(())
}

/// Tests datagrams of every length, from 0 bytes to more than the MTU, which are fragmented on both sides.
fn every_size(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(family, 1), group(family, 2));
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let sender = Sender::new(row.sender(), from, 8)?;
    // A relay does not reassemble IPv6 fragments: it counts them and does not forward them.
    let sizes: &[usize] = match family {
        Family::V4 => &[
            4, 5, 100, 1471, 1472, 1473, 1500, 2000, 2960, 8972, 9000, 30_000, 65_507,
        ],
        Family::V6 => &[4, 5, 100, 1451, 1452],
    };
    let size = |number: u32| sizes[number as usize % sizes.len()];
    let count = 10 * sizes.len() as u32;
    sender.send(0..count, size)?;
    receiver.expect(0..count, size)?;
    sender.socket().send(&[])?;
    ensure!(
        receiver.next(std::time::Duration::from_secs(5))? == Some(Vec::new()),
        "the empty one has not come"
    );
    if family == Family::V6 {
        sender.send(count..count + 1, |_| 3000)?;
        let stats = relay.stats_when("the fragments are counted", |stats| {
            stats.number("/interfaces/0/fragment") == 3
        })?;
        stats.add_up()?;
    }
    relay.stats()?.add_up()
}

/// Tests `count` relays in a row, of which each receives the group to which the previous one sends.
fn in_a_row(context: &Context, row: &RelayRow, family: Family, count: u16) -> Result<Vec<RunningRelay>> {
    let start = |number: u16| {
        let rule = onward(group(family, 1 + number), group(family, 2 + number));
        RunningRelay::with_rules(context, row.relay(number.into()), &[rule])
    };
    (0..count).map(start).collect()
}

fn chain(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(3)?;
    let mut relays = in_a_row(context, &row, family, 3)?;
    let receiver = Receiver::new(row.receiver(), group(family, 4))?;
    let sender = Sender::new(row.sender(), group(family, 1), 8)?;
    sender.send(0..MANY, usual)?;
    receiver.expect(0..MANY, usual)?;
    for relay in &mut relays {
        let stats = relay.stats()?;
        stats.add_up()?;
        stats.expect("/rules/0/outputs/0/sent", MANY.into())?;
    }
    Ok(())
}

fn tree(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(family, 1), group(family, 2));
    let leaves = [row.leaf(0)?, row.leaf(1)?];
    let rule = format!("left {from} -> right {to}, leaf0 {to}, leaf1 *:*");
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[rule])?;
    let receivers = [
        Receiver::new(row.receiver(), to)?,
        Receiver::new(&leaves[0], to)?,
        Receiver::new(&leaves[1], from)?,
    ];
    let sender = Sender::new(row.sender(), from, 8)?;
    sender.send(0..MANY, usual)?;
    for receiver in &receivers {
        receiver.expect(0..MANY, usual)?;
    }
    relay.stats()?.add_up()
}

/// Tests flows of 64 rules with different lengths whose datagrams are sent alternately: the order within each flow is
/// kept.
fn mixed(context: &Context, family: Family) -> Result<()> {
    const FLOWS: u16 = 64;
    let row = RelayRow::new(1)?;
    let rules: Vec<String> = (1..=FLOWS)
        .map(|number| onward(group(family, number), group(family, 100 + number)))
        .collect();
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &rules)?;
    let sizes = [200, 1400, 600, 64, 1000];
    let size = |number: u32| sizes[number as usize % sizes.len()];
    let flows = (1..=FLOWS)
        .map(|number| {
            Ok((
                Sender::new(row.sender(), group(family, number), 8)?,
                Receiver::new(row.receiver(), group(family, 100 + number))?,
            ))
        })
        .collect::<Result<Vec<_>>>()?;
    for number in 0..200 {
        for (sender, _) in &flows {
            sender.send(number..number + 1, size)?;
        }
    }
    for (_, receiver) in &flows {
        receiver.take(0..200, size)?;
    }
    relay.stats()?.add_up()
}

fn outputs(context: &Context, family: Family) -> Result<()> {
    const OUTPUTS: u16 = 50;
    let row = RelayRow::new(1)?;
    let from = group(family, 1);
    let to = |number| group(family, 100 + number);
    let outputs: Vec<String> = (0..OUTPUTS)
        .map(|number| format!("right {}", to(number)))
        .collect();
    let rule = format!("left {from} -> {}", outputs.join(", "));
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[rule])?;
    let receivers = (0..OUTPUTS)
        .map(|number| Receiver::new(row.receiver(), to(number)))
        .collect::<Result<Vec<_>>>()?;
    Sender::new(row.sender(), from, 8)?.send(0..500, usual)?;
    for receiver in &receivers {
        receiver.take(0..500, usual)?;
    }
    let stats = relay.stats()?;
    stats.add_up()?;
    for number in 0..OUTPUTS {
        stats.expect(&format!("/rules/0/outputs/{number}/sent"), 500)?;
    }
    stats.expect("/workers/0/datagrams", 500)?;
    stats.expect("/workers/0/sent", 500 * u64::from(OUTPUTS))
}
