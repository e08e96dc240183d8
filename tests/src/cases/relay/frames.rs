//! Frames that are not the usual ones: many datagrams in one, longer than usual.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use anyhow::{Result, ensure};

use super::traffic::{Receiver, Sender};
use super::world::{Relay, Row};
use super::{MANY, group, in_a_row, onward, usual};
use crate::case::{Case, Context, Family};
use crate::network::{add_address, ip};
use crate::process::output;
use crate::sys;

pub(super) fn cases() -> Vec<Case> {
    let both = [
        Case::both("relay.super-frames-through-a-chain", 30, super_frames),
        Case::both("relay.jumbo-frames", 30, jumbo),
    ];
    let one = [
        Case::new("relay.an-interface-on-another-has-its-own", 20, on_top),
        Case::new("relay.a-tag-that-is-not-for-us", 20, tagged),
    ];
    both.into_iter().flatten().chain(one).collect()
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

/// What comes in through an interface for another one on top of it, as for a VLAN, is the other's, and once.
fn on_top(context: &Context) -> Result<()> {
    let row = Row::new(1)?;
    let own = SocketAddr::from(([10, 5, 0, 2], 6000));
    row.relay(0).enter(|| {
        ip("link add link left name top address 02:00:00:00:00:05 type macvlan mode bridge")?;
        add_address("top", "10.5.0.2/24")?;
        ip("link set top up")
    })?;
    row.sender().enter(|| {
        add_address("right", "10.5.0.1/24")?;
        ip("neigh replace 10.5.0.2 lladdr 02:00:00:00:00:05 dev right nud permanent")
    })?;
    // Without anybody there the host's own IP would answer that there is nobody.
    let _somebody = row.relay(0).enter(|| Ok(UdpSocket::bind(own)?))?;
    let (below, above) = (group(Family::V4, 1), group(Family::V4, 2));
    let rules = [onward(own, below), format!("top {own} -> right {above}")];
    let mut relay = Relay::with_rules(context, row.relay(0), &rules)?;
    let (below, above) = (
        Receiver::new(row.receiver(), below)?,
        Receiver::new(row.receiver(), above)?,
    );
    Sender::new(row.sender(), own, 8)?.send(0..MANY, usual)?;
    above.expect(0..MANY, usual)?;
    below.expect_silence()?;
    let stats = relay.stats()?;
    stats.add_up()?;
    stats.expect("/rules/0/datagrams", 0)?;
    stats.expect("/rules/1/datagrams", MANY.into())
}

/// What is for a VLAN that nobody here has is for nobody here; a tag that is a priority alone changes nothing.
fn tagged(context: &Context) -> Result<()> {
    let row = Row::new(1)?;
    let (from, to) = (group(Family::V4, 1), group(Family::V4, 2));
    let mut relay = Relay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let sender = Sender::new(row.sender(), from, 8)?;
    let wire = row.sender().enter(|| {
        // With its checksum, for others to send.
        output(Command::new("ethtool").args(["-K", "right", "tx", "off"]))?;
        let index = rustix::net::netdevice::name_to_index(sender.socket(), "right")?;
        Ok(sys::packet_socket(index)?)
    })?;
    sender.send(0..1, |_| 100)?;
    receiver.take(0..1, |_| 100)?;
    let mut frame = [0; 2048];
    let len = loop {
        let len = rustix::io::read(&wire, &mut frame)?;
        if len == 14 + 20 + 8 + 100 {
            break len;
        }
    };
    let (addresses, rest) = frame[..len].split_at(12);
    for (vlan, arrives) in [(0, true), (7, false)] {
        let tag = [0x81, 0x00, 0xa0, vlan];
        rustix::io::write(&wire, &[addresses, &tag, rest].concat())?;
        match arrives {
            true => receiver.expect(0..1, |_| 100)?,
            false => receiver.expect_silence()?,
        }
    }
    relay.stats()?.expect("/rules/0/datagrams", 2)
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
