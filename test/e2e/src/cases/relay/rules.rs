//! Cases about the semantics of rules.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use pontoon_netns::{Namespace, add_address, sysctl};
use rustix::net::sockopt;

use super::traffic::{Receiver, Sender};
use super::world::{RelayRow, RunningRelay, on_the_left, on_the_right};
use super::{MANY, group, onward, usual};
use crate::case::{Case, Context, Family};
use crate::sys;

pub(super) fn cases() -> Vec<Case> {
    let both = [
        Case::both("relay.ttl-is-decremented-and-dscp-kept", 20, header),
        Case::both("relay.expired-ttl", 20, ttl_ends),
        Case::both("relay.loop-of-two-relays-ends", 20, facing),
        Case::both("relay.joins-groups", 20, joins),
        Case::both("relay.source-rule-precedes-any-source-rule", 20, sources),
        Case::both("relay.group-to-unicast-and-back", 20, unicast),
        Case::both("relay.range-of-groups", 20, range),
    ];
    let one = Case::new("relay.reverse-path-filter", 20, reverse_path);
    both.into_iter().flatten().chain([one]).collect()
}

/// Returns TTL and TOS, or hop limit and traffic class, of the first packet to `to` that arrives on the interface
/// `left`.
fn header_of(node: &Namespace, to: SocketAddr, send: impl FnOnce() -> Result<()>) -> Result<(u8, u8)> {
    let socket = node.enter(|| {
        let any = std::net::UdpSocket::bind("0.0.0.0:0")?;
        let index = rustix::net::netdevice::name_to_index(&any, "left")?;
        Ok(sys::packet_socket(index)?)
    })?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(5)))?;
    send()?;
    let begin = Instant::now();
    let mut frame = [0; 2048];
    while begin.elapsed() < Duration::from_secs(5) {
        let len = rustix::io::read(socket.as_fd(), &mut frame)?;
        let packet = frame.get(14..len).unwrap_or_default();
        match (to, packet) {
            (SocketAddr::V4(to), [0x45, tos, ..])
                if packet.len() >= 28 && packet[9] == 17 && packet[16..20] == to.ip().octets() =>
            {
                return Ok((packet[8], *tos));
            }
            (SocketAddr::V6(to), [first, second, ..])
                if packet.len() >= 48 && packet[6] == 17 && packet[24..40] == to.ip().octets() =>
            {
                return Ok((packet[7], first << 4 | second >> 4));
            }
            _ => {}
        }
    }
    bail!("no packet to {to} has arrived")
}

fn header(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(family, 1), group(family, 2));
    let (other, set) = (group(family, 3), group(family, 4));
    let rules = [onward(from, to), format!("left {other} -> right {set} ttl 200")];
    let _relay = RunningRelay::with_rules(context, row.relay(0), &rules)?;
    for (from, to, ttl) in [(from, to, 8), (other, set, 200)] {
        let sender = Sender::new(row.sender(), from, 9)?;
        match family {
            Family::V4 => sockopt::set_ip_tos(sender.socket(), 0xb8)?,
            Family::V6 => sockopt::set_ipv6_tclass(sender.socket(), 0xb8)?,
        }
        let seen = header_of(row.receiver(), to, || sender.send(0..1, usual))?;
        ensure!(seen == (ttl, 0xb8), "TTL and DSCP are {seen:?}");
    }
    Ok(())
}

fn ttl_ends(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(family, 1), group(family, 2));
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    Sender::new(row.sender(), from, 1)?.send(0..10, usual)?;
    receiver.expect_silence()?;
    let stats = relay.stats()?;
    stats.add_up()?;
    stats.expect("/rules/0/outputs/0/expired", 10)
}

/// Tests two relays that forward each other's datagrams: the TTL ends the loop.
fn facing(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(2)?;
    let circle = group(family, 1);
    let mut first = RunningRelay::with_rules(
        context,
        row.relay(0),
        &[
            format!("left {circle} -> right {circle}"),
            format!("right {} -> right {circle}", group(family, 2)),
        ],
    )?;
    let mut second = RunningRelay::with_rules(
        context,
        row.relay(1),
        &[format!("left {circle} -> left {}", group(family, 2))],
    )?;
    Sender::new(row.sender(), circle, 20)?.send(0..1, usual)?;
    let ended = second.stats_when("it ends", |stats| stats.number("/rules/0/outputs/0/expired") == 1)?;
    ended.add_up()?;
    // The TTL is 20 at the sender, and each of both relays decrements it.
    let first = first.stats()?;
    let turns = first.number("/rules/0/datagrams")
        + first.number("/rules/1/datagrams")
        + ended.number("/rules/0/datagrams");
    ensure!(turns == 20, "the datagram was received {turns} times");
    Ok(())
}

/// Tests that the kernel joins the groups and sources of the rules, and leaves them when the relay exits.
fn joins(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (any, some) = (group(family, 1), group(family, 3));
    let source = on_the_left(family, 0);
    let rules = [
        onward(any, group(family, 2)),
        format!("left {some} from {source} -> right {}", group(family, 2)),
    ];
    let relay = RunningRelay::with_rules(context, row.relay(0), &rules)?;
    let memberships = || {
        row.relay(0).enter(|| {
            crate::process::output(std::process::Command::new("ip").args(["maddress", "show", "left"]))
        })
    };
    let filters = match family {
        Family::V4 => "/proc/thread-self/net/mcfilter",
        Family::V6 => "/proc/thread-self/net/mcfilter6",
    };
    let shown = memberships()?;
    for group in [any, some] {
        ensure!(
            shown.contains(&group.ip().to_string()),
            "not joined: {group} in {shown}"
        );
    }
    let shown = row.relay(0).enter(|| Ok(std::fs::read_to_string(filters)?))?;
    eprintln!("{shown}");
    let wanted = match family {
        Family::V4 => "0x0a000001".to_owned(),
        Family::V6 => "20010db8000000000000000000000001".to_owned(),
    };
    ensure!(
        shown.contains(&wanted),
        "the kernel has not joined the source {source} only: {shown}"
    );
    drop(relay);
    let shown = memberships()?;
    ensure!(
        !shown.contains(&any.ip().to_string()),
        "the kernel has not left the group: {shown}"
    );
    Ok(())
}

fn sources(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let from = group(family, 1);
    let (first, second) = (group(family, 2), group(family, 3));
    let (one, other) = (
        on_the_left(family, 0),
        family.pick([10, 0, 0, 77].into(), "2001:db8::77".parse()?),
    );
    let width = if family == Family::V4 { 24 } else { 64 };
    row.sender()
        .enter(|| add_address("right", &format!("{other}/{width}")))?;
    let rules = [
        format!("left {from} from {one} -> right {first}"),
        format!("left {from} -> right {second}"),
    ];
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &rules)?;
    let receivers = [first, second].map(|to| Receiver::new(row.receiver(), to));
    for (source, receiver) in [one, other].into_iter().zip(receivers) {
        let receiver = receiver?;
        Sender::from(row.sender(), SocketAddr::new(source, 0), from, 8)?.send(0..100, usual)?;
        receiver.expect(0..100, usual)?;
    }
    relay.stats()?.add_up()
}

/// Tests a relay that sends to a unicast address of a second relay, which sends to a group.
fn unicast(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(2)?;
    let (from, to) = (group(family, 1), group(family, 2));
    let between = SocketAddr::new(on_the_right(family, 1), 6000);
    let _first = RunningRelay::with_rules(context, row.relay(0), &[onward(from, between)])?;
    let _second = RunningRelay::with_rules(context, row.relay(1), &[onward(between, to)])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    Sender::new(row.sender(), from, 8)?.send(0..MANY, usual)?;
    receiver.expect(0..MANY, usual)?;
    // The sender must not receive an ICMP error for a port without a socket.
    Sender::new(row.relay(0), between, 8)?.send(0..MANY, usual)?;
    receiver.expect(0..MANY, usual)
}

/// Tests a rule with ranges of groups and ports, which no host has joined.
fn range(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let range = match family {
        Family::V4 => "239.1.0.0/16:*",
        Family::V6 => "[ff1e::/32]:*",
    };
    let _relay = RunningRelay::with_rules(context, row.relay(0), &[format!("left {range} -> right *:*")])?;
    for number in [1, 50, 200] {
        let group = group(family, number);
        let receiver = Receiver::new(row.receiver(), group)?;
        Sender::new(row.sender(), group, 8)?.send(0..100, usual)?;
        receiver.expect(0..100, usual)?;
    }
    Ok(())
}

/// Tests a source address that the relay's kernel would route to another interface (reverse path filter).
fn reverse_path(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(Family::V4, 1), group(Family::V4, 2));
    row.relay(0).enter(|| {
        sysctl("net/ipv4/conf/all/rp_filter", "1")?;
        sysctl("net/ipv4/conf/left/rp_filter", "1")
    })?;
    row.sender().enter(|| add_address("right", "192.0.2.1/32"))?;
    let _relay = RunningRelay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let stranger = SocketAddr::from(([192, 0, 2, 1], 0));
    Sender::from(row.sender(), stranger, from, 8)?.send(0..100, usual)?;
    receiver.expect(0..100, usual)
}
