//! As much as the sender can send.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::traffic::{Receiver, Sender, payload};
use super::world::{Relay, Row};
use super::{group, onward, usual};
use crate::case::{Case, Context, Family};
use crate::network::Namespace;
use crate::process::{output, wait_until};
use crate::sys;

pub(super) fn cases() -> Vec<Case> {
    Case::both("relay.a-flood-adds-up", 60, flood)
        .map(Case::alone)
        .into()
}

/// How long the flood lasts.
const FLOOD: Duration = Duration::from_secs(1);

/// Datagrams of one call, which the sender's kernel takes apart.
const TOGETHER: u32 = 40;

/// Each datagram that was sent was received, or is in a counter, at every place.
fn flood(context: &Context, family: Family) -> Result<()> {
    let row = Row::new(1)?;
    let (from, to) = (group(family, 1), group(family, 2));
    let mut relay = Relay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let sender = Sender::new(row.sender(), from, 8)?;
    row.sender().enter(|| {
        let mut ethtool = Command::new("ethtool");
        output(ethtool.args(["-K", "right", "tx-udp-segmentation", "off"])).map(drop)
    })?;
    let before = [dropped(row.relay(0))?, dropped(row.receiver())?];

    sys::segment_sends(sender.socket(), 1400)?;
    let (begin, mut offered) = (Instant::now(), 0);
    let cpu = relay.cpu()?;
    while begin.elapsed() < FLOOD {
        let numbers = offered..offered + TOGETHER;
        let bytes: Vec<u8> = numbers
            .flat_map(|number| payload(number, usual(number)))
            .collect();
        sender.socket().send(&bytes)?;
        offered += TOGETHER;
    }
    let rate = f64::from(offered) / begin.elapsed().as_secs_f64();

    let mut last = relay.stats()?;
    wait_until("nothing more comes in", Duration::from_secs(10), || {
        std::thread::sleep(Duration::from_millis(100));
        let now = relay.stats()?;
        let still = now.number("/interfaces/0/packets") == last.number("/interfaces/0/packets");
        last = now;
        Ok(still)
    })?;
    let cpu = relay.cpu()? - cpu;
    last.add_up()?;
    let device = dropped(row.relay(0))? - before[0];
    let ring = last.number("/interfaces/0/kernel_dropped");
    let sent = last.number("/rules/0/outputs/0/sent");
    eprintln!(
        "{rate:.0} a second, {cpu:?} of CPU: {offered} offered, {device} + {ring} dropped, {sent} sent"
    );
    ensure!(
        last.number("/interfaces/0/kernel_packets") + device == u64::from(offered),
        "what the kernel counted is not what was sent"
    );
    ensure!(
        sent + ring + device == u64::from(offered),
        "sent and dropped do not add up to what was offered"
    );
    let received = u64::from(receiver.count(usual)?) + u64::from(receiver.missed()?);
    let lost = dropped(row.receiver())? - before[1];
    ensure!(
        received + lost == sent,
        "{received} received, {lost} dropped in front of the receiver, {sent} sent"
    );
    Ok(())
}

/// Packets that the kernel has dropped between the device `left` and whoever wants them.
fn dropped(node: &Namespace) -> Result<u64> {
    let text = node.enter(|| output(Command::new("ip").args(["-j", "-s", "link", "show", "left"])))?;
    let shown: Value = serde_json::from_str(&text)?;
    shown
        .pointer("/0/stats64/rx/dropped")
        .and_then(Value::as_u64)
        .context("no such counter")
}
