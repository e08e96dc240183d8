//! Cases with a sender that sends as fast as possible.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::Namespace;
use serde_json::Value;

use super::traffic::{Receiver, Sender, payload};
use super::world::{RelayRow, RunningRelay};
use super::{group, in_a_row, usual};
use crate::case::{Case, Context, Family};
use crate::process::{output, wait_until};
use crate::sys;

pub(super) fn cases() -> Vec<Case> {
    Case::both("relay.flood-counters-add-up", 60, flood)
        .map(Case::alone)
        .into()
}

/// Duration of the flood of datagrams to the relay.
const FLOOD: Duration = Duration::from_secs(1);

/// Number of relays in a row: the first receives single datagrams, the others many in one packet.
const HOPS: u8 = 2;

/// Number of datagrams in one send call, which the sender's kernel segments before the link.
const TOGETHER: u32 = 40;

/// Tests that each datagram that was sent was either received or counted as lost, at every relay.
fn flood(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(HOPS)?;
    let mut relays = in_a_row(context, &row, family, HOPS.into())?;
    let receiver = Receiver::new(row.receiver(), group(family, 1 + u16::from(HOPS)))?;
    let sender = Sender::new(row.sender(), group(family, 1), 8)?;
    row.sender().enter(|| {
        let mut ethtool = Command::new("ethtool");
        output(ethtool.args(["-K", "right", "tx-udp-segmentation", "off"])).map(drop)
    })?;
    let before = seen(&mut relays)?;
    let lost_before = dropped(row.receiver())?;

    sys::segment_sends(sender.socket(), 1400)?;
    let (begin, mut offered) = (Instant::now(), 0_u32);
    while begin.elapsed() < FLOOD {
        let numbers = offered..offered + TOGETHER;
        let bytes: Vec<u8> = numbers
            .flat_map(|number| payload(number, usual(number)))
            .collect();
        sender.socket().send(&bytes)?;
        offered += TOGETHER;
    }
    let rate = f64::from(offered) / begin.elapsed().as_secs_f64();

    let mut last = seen(&mut relays)?;
    wait_until(
        "the counters do not change any more",
        Duration::from_secs(10),
        || {
            // No datagram is in flight if the counters have not changed for this time.
            std::thread::sleep(Duration::from_millis(100));
            let now = seen(&mut relays)?;
            let still = now.iter().zip(&last).all(|(now, last)| now.taken == last.taken);
            last = now;
            Ok(still)
        },
    )?;
    for relay in &mut relays {
        relay.stats()?.add_up()?;
    }
    eprintln!("{rate:.0} a second: {offered} offered");
    let mut came = u64::from(offered);
    for (number, (seen, before)) in last.iter().zip(&before).enumerate() {
        let device = seen.device - before.device;
        eprintln!("hop {number}: {came} came, {device} dropped by the device, {seen:?}");
        ensure!(
            seen.taken + seen.ring + device == came,
            "what was taken and dropped is not what came"
        );
        ensure!(
            seen.sent + seen.lost + seen.ring + device == came,
            "what was sent and dropped is not what came"
        );
        ensure!(
            number == 0 || seen.ring + device == 0,
            "packets of many datagrams were dropped, which counts them as one"
        );
        came = seen.sent;
    }
    let received = u64::from(receiver.count(usual)?) + u64::from(receiver.missed()?);
    let lost = dropped(row.receiver())? - lost_before;
    ensure!(
        received + lost == came,
        "{received} received, {lost} dropped in front of the receiver, {came} sent"
    );
    Ok(())
}

/// Counters of a relay: of its left interface and of its output.
#[derive(Debug)]
struct RelayCounts {
    taken: u64,
    /// Datagrams that the kernel dropped because the ring was full.
    ring: u64,
    /// Datagrams that the kernel dropped between the device and the ring.
    device: u64,
    sent: u64,
    /// Datagrams that the relay has received and not sent.
    lost: u64,
}

fn seen(relays: &mut [RunningRelay]) -> Result<Vec<RelayCounts>> {
    let of = |relay: &mut RunningRelay| {
        let stats = relay.stats()?;
        let (taken, sent) = (
            stats.number("/interfaces/0/datagrams"),
            stats.number("/rules/0/outputs/0/sent"),
        );
        let lost = |names: &[&str]| -> u64 { names.iter().map(|name| stats.number(name)).sum() };
        Ok(RelayCounts {
            taken,
            ring: stats.number("/interfaces/0/kernel_dropped"),
            device: stats.number("/devices/0/rx_dropped"),
            sent,
            lost: lost(&[
                "/interfaces/0/cut",
                "/rules/0/outputs/0/refused",
                "/rules/0/outputs/0/busy",
            ]),
        })
    };
    relays.iter_mut().map(of).collect()
}

/// Returns how many packets of the device `left` the kernel has dropped before the receiving sockets.
fn dropped(node: &Namespace) -> Result<u64> {
    let text = node.enter(|| output(Command::new("ip").args(["-j", "-s", "link", "show", "left"])))?;
    let shown: Value = serde_json::from_str(&text)?;
    shown
        .pointer("/0/stats64/rx/dropped")
        .and_then(Value::as_u64)
        .context("ip prints no counter of dropped packets")
}
