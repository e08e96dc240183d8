//! Cases about interfaces and outputs that fail.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pontoon_netns::{Namespace, add_address, ip, sysctl, veth};
use rustix::process::Signal;

use super::traffic::{Receiver, Sender};
use super::world::{RelayRow, RunningRelay, command};
use super::{MANY, group, onward, reload, usual};
use crate::case::{Case, Context, Family};
use crate::process::wait_until;

pub(super) fn cases() -> Vec<Case> {
    let both = [
        Case::both("relay.failing-output-does-not-affect-others", 30, bad_output),
        Case::both("relay.interface-added-and-removed", 60, interface),
    ];
    let one = [
        Case::new("relay.output-without-offloads", 20, no_offload),
        Case::new("relay.smaller-mtu", 20, smaller_mtu),
        Case::new("relay.late-address", 20, late_address),
        Case::new("relay.removed-inputs-do-not-delay-others", 20, inputs_go).alone(),
        Case::new("relay.refuses-malformed-rules", 20, malformed),
    ];
    both.into_iter().flatten().chain(one).collect()
}

/// Tests an output without an address and one without a route, beside an output that works.
fn bad_output(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (good, to) = (group(family, 1), group(family, 2));
    let (bad, later) = (group(family, 3), group(family, 4));
    let nowhere = match family {
        Family::V4 => "203.0.113.1:9",
        Family::V6 => "[2001:db8:ffff::1]:9",
    };
    row.relay(0).enter(|| {
        ip("link add bare type veth peer name other")?;
        ip("link set other up")?;
        sysctl("net/ipv6/conf/bare/disable_ipv6", "1")?;
        ip("link set bare up")
    })?;
    let rules = [
        onward(good, to),
        format!("left {bad} -> bare {later}, right {nowhere}, right {later}"),
    ];
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &rules)?;
    let before = relay.stats()?;
    let (receiver, beside) = (
        Receiver::new(row.receiver(), to)?,
        Receiver::new(row.receiver(), later)?,
    );
    let (sender, disturber) = (
        Sender::new(row.sender(), good, 8)?,
        Sender::new(row.sender(), bad, 8)?,
    );
    for begin in (0..MANY).step_by(100) {
        sender.send(begin..begin + 100, usual)?;
        disturber.send(begin / 10..begin / 10 + 10, usual)?;
    }
    receiver.expect(0..MANY, usual)?;
    beside.expect(0..MANY / 10, usual)?;
    let stats = relay.stats()?;
    stats.add_up()?;
    stats.expect("/rules/1/outputs/0/down", (MANY / 10).into())?;
    ensure!(
        stats.text("/rules/1/outputs/0/state") != "up",
        "an output without an address is up"
    );
    stats.expect("/workers/0/restarts", 0)?;
    stats.expect("/workers/0/pid", before.number("/workers/0/pid"))?;

    // The output works after its interface has got an address.
    row.relay(0).enter(|| {
        sysctl("net/ipv6/conf/bare/disable_ipv6", "0")?;
        add_address("bare", "10.9.9.1/24")?;
        add_address("bare", "2001:db8:999::1/64")
    })?;
    relay.stats_when("the output is up", |stats| {
        stats.text("/rules/1/outputs/0/state") == "up"
    })?;
    disturber.send(0..10, usual)?;
    relay.stats_when("the output sends", |stats| {
        stats.number("/rules/1/outputs/0/sent") == 10
    })?;
    Ok(())
}

/// Tests a rule whose interface does not exist at first, and one whose interface disappears and returns.
fn interface(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(family, 1), group(family, 2));
    let rule = format!("late {from} -> right {to}");
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[rule])?;
    ensure!(
        relay.stats()?.text("/interfaces/0/state") == "no such interface",
        "it does not report that it waits"
    );
    let receiver = Receiver::new(row.receiver(), to)?;
    for round in 0..3_u32 {
        let node = Namespace::new()?;
        row.relay(0).enter(|| {
            veth("late", &node, "out")?;
            add_address("late", "10.7.7.2/24")?;
            add_address("late", "2001:db8:77::2/64")
        })?;
        node.enter(|| {
            add_address("out", "10.7.7.1/24")?;
            add_address("out", "2001:db8:77::1/64")?;
            ip("route add 224.0.0.0/4 dev out")
        })?;
        relay.stats_when("the input is open", |stats| {
            stats.text("/interfaces/0/state").starts_with("packet ring")
        })?;
        Sender::new(&node, from, 8)?.send(0..100, usual)?;
        receiver.expect(0..100, usual)?;
        row.relay(0).enter(|| ip("link set late down"))?;
        relay.stats_when("the input is closed", |stats| {
            stats.text("/interfaces/0/state") == "the interface is down"
        })?;
        row.relay(0).enter(|| ip("link set late up"))?;
        relay.stats_when("the input is open again", |stats| {
            stats.text("/interfaces/0/state").starts_with("packet ring")
        })?;
        Sender::new(&node, from, 8)?.send(0..100, usual)?;
        receiver.expect(0..100, usual)?;
        row.relay(0).enter(|| ip("link delete late"))?;
        let stats = relay.stats_when("the input is gone", |stats| {
            stats.text("/interfaces/0/state") == "no such interface"
        })?;
        stats.add_up()?;
        stats.expect("/rules/0/outputs/0/sent", u64::from(round + 1) * 200)?;
    }
    relay.stats()?.expect("/workers/0/restarts", 0)
}

/// Tests that the removal of many inputs does not delay other rules, although the kernel takes 20 ms to close a
/// packet ring.
fn inputs_go(context: &Context) -> Result<()> {
    const INPUTS: u16 = 10;
    let row = RelayRow::new(1)?;
    let (from, to) = (group(Family::V4, 1), group(Family::V4, 2));
    let mut rules = vec![onward(from, to)];
    row.relay(0).enter(|| {
        (0..INPUTS).try_for_each(|number| {
            ip(&format!(
                "link add more{number} type veth peer name other{number}"
            ))?;
            ip(&format!("link set other{number} up"))?;
            ip(&format!("link set more{number} up"))
        })
    })?;
    rules.extend((0..INPUTS).map(|number| format!("more{number} {from} -> right *:*")));
    reload::write(&rules)?;
    let mut relay = RunningRelay::start(context, row.relay(0), ["--config", reload::FILE])?;
    let (sender, receiver) = (
        Sender::new(row.sender(), from, 8)?,
        Receiver::new(row.receiver(), to)?,
    );
    reload::write(&rules[..1])?;
    let (begin, mut number, mut longest) = (Instant::now(), 0, Duration::ZERO);
    while begin.elapsed() < Duration::from_secs(1) {
        if number == 100 {
            relay.signal(Signal::HUP)?;
        }
        let sent = Instant::now();
        sender.send(number..number + 1, usual)?;
        receiver.take(number..number + 1, usual)?;
        longest = longest.max(sent.elapsed());
        number += 1;
    }
    eprintln!("{number} datagrams; the slowest took {longest:?}");
    ensure!(longest < Duration::from_millis(80), "a datagram took {longest:?}");
    let stats = relay.stats()?;
    ensure!(
        stats.text("/interfaces/1/state").is_empty(),
        "the inputs are there"
    );
    stats.expect("/rules/0/outputs/0/sent", number.into())?;
    // The supervisor closes the rings some time later.
    relay.stats_when("all rings but one are closed", |_| {
        row.relay(0)
            .enter(|| Ok(std::fs::read_to_string("/proc/thread-self/net/packet")?))
            .is_ok_and(|rings| rings.lines().count() == 2)
    })?;
    Ok(())
}

/// Tests a device without segmentation and checksum offload.
fn no_offload(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(Family::V4, 1), group(Family::V4, 2));
    let ethtool = std::process::Command::new("ethtool").arg("--version").output();
    ensure!(ethtool.is_ok(), "there is no ethtool");
    row.relay(0).enter(|| {
        let mut ethtool = std::process::Command::new("ethtool");
        crate::process::output(ethtool.args(["-K", "right", "tx", "off", "tx-udp-segmentation", "off"]))
            .map(drop)
    })?;
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    Sender::new(row.sender(), from, 8)?.send(0..MANY, usual)?;
    receiver.expect(0..MANY, usual)?;
    relay.stats()?.add_up()
}

/// Tests datagrams that fit the MTU of the left link and are fragmented on the right one, and a change of the MTU.
fn smaller_mtu(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(Family::V4, 1), group(Family::V4, 2));
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let sender = Sender::new(row.sender(), from, 8)?;
    for mtu in [1500, 600, 1500] {
        row.receiver().enter(|| ip(&format!("link set left mtu {mtu}")))?;
        row.relay(0).enter(|| ip(&format!("link set right mtu {mtu}")))?;
        relay.wait_until_idle()?;
        sender.send(0..MANY, usual)?;
        receiver.expect(0..MANY, usual)?;
    }
    relay.stats()?.add_up()
}

/// Tests an output whose IPv6 address is tentative for a second (RFC 4862 section 5.4), and then becomes the source
/// address.
fn late_address(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(Family::V6, 1), group(Family::V6, 2));
    row.relay(0).enter(|| {
        ip("address flush dev right to 2001:db8::/32")?;
        for option in ["accept_dad", "dad_transmits"] {
            sysctl(&format!("net/ipv6/conf/right/{option}"), "1")?;
        }
        Ok(())
    })?;
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    relay.stats_when("the output is up", |stats| {
        stats.text("/rules/0/outputs/0/state") == "up"
    })?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let sender = Sender::new(row.sender(), from, 8)?;
    sender.send(0..1, usual)?;
    ensure!(
        receiver.sender()?.to_string().starts_with("fe80:"),
        "it has another address yet"
    );
    row.relay(0)
        .enter(|| ip("address add 2001:db8:1::9/64 dev right"))?;
    wait_until(
        "the relay sends from the new address",
        Duration::from_secs(5),
        || {
            sender.send(0..1, usual)?;
            Ok(receiver.sender()?.to_string() == "2001:db8:1::9")
        },
    )
    .map(drop)
}

/// Tests that an invalid configuration is reported in one line, with exit status 2.
fn malformed(context: &Context) -> Result<()> {
    super::super::tmpfs(std::path::Path::new("/mnt"))?;
    let file = "/mnt/relay.toml";
    std::fs::write(
        file,
        "rules = [\n  \"a 239.1.1.1:1 -> b 239.1.1.1:1\",\n  \"a 239.1.1.300:1 -> b 239.1.1.1:1\",\n]\n",
    )?;
    let cases: [(&[&str], &str); 4] = [
        (&["--rule", "eth0 239.1.1.1:5001 eth1"], "no '->'"),
        (&["--rule", "eth0 239.1.1.1:0 -> eth1 *:*"], "invalid port '0'"),
        (
            &["--config", file],
            "/mnt/relay.toml: line 3: invalid address '239.1.1.300'",
        ),
        (&[], "required"),
    ];
    for (arguments, wanted) in cases {
        let output = command(context)?.arg("relay").args(arguments).output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        eprintln!("{stderr}");
        ensure!(stderr.contains(wanted), "{arguments:?}: {stderr}");
        ensure!(
            stderr.trim_end().lines().count() == 1,
            "more than one line: {stderr}"
        );
        ensure!(output.status.code() == Some(2), "{}", output.status);
    }
    Ok(())
}
