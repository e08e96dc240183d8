//! Frames that are not the usual ones: many datagrams in one, longer than usual.

use anyhow::{Result, ensure};

use super::traffic::{Receiver, Sender};
use super::world::{Relay, Row};
use super::{MANY, group, in_a_row, onward, usual};
use crate::case::{Case, Context, Family};
use crate::network::ip;

pub(super) fn cases() -> Vec<Case> {
    [
        Case::both("relay.super-frames-through-a-chain", 30, super_frames),
        Case::both("relay.jumbo-frames", 30, jumbo),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A sender whose kernel hands over many datagrams as one packet, which is what each relay hands on.
fn super_frames(context: &Context, family: Family) -> Result<()> {
    let row = Row::new(3)?;
    let mut relays = in_a_row(context, &row, family, 3)?;
    let receiver = Receiver::new(row.receiver(), group(family, 4))?;
    let sender = Sender::new(row.sender(), group(family, 1), 8)?;
    sender.send_together(0..MANY, 1400, 32)?;
    receiver.expect(0..MANY, usual)?;
    let stats = relays[0].stats()?;
    stats.add_up()?;
    stats.expect("/interfaces/0/datagrams", MANY.into())?;
    let packets = stats.number("/interfaces/0/packets");
    ensure!(
        packets == u64::from(MANY.div_ceil(32)),
        "{packets} packets came in: they were no super-frames"
    );
    Ok(())
}

/// Longer than what a ring is usually made for, on both sides, one by one and together.
fn jumbo(context: &Context, family: Family) -> Result<()> {
    let row = Row::new(1)?;
    for (node, interface) in [
        (row.sender(), "right"),
        (row.relay(0), "left"),
        (row.relay(0), "right"),
        (row.receiver(), "left"),
    ] {
        node.enter(|| ip(&format!("link set {interface} mtu 9000")))?;
    }
    let (from, to) = (group(family, 1), group(family, 2));
    let mut relay = Relay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let sender = Sender::new(row.sender(), from, 8)?;
    sender.send(0..500, |_| 8900)?;
    receiver.expect(0..500, |_| 8900)?;
    sender.send_together(0..500, 8900, 7)?;
    receiver.expect(0..500, |_| 8900)?;
    let stats = relay.stats()?;
    stats.add_up()?;
    stats.expect("/rules/0/outputs/0/sent", 1000)
}
