//! Cases about `pontoon relay --proxy`: groups that hosts behind downstream interfaces join.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::{add_address, ip};
use pontoon_relay::membership::message::Query;
use pontoon_wire::checksum::Sum;
use rustix::process::Signal;

use super::traffic::{Receiver, Sender};
use super::world::{RelayRow, RelayStats, RunningRelay};
use super::{group, usual};
use crate::case::{Case, Context, Family};
use crate::process::{Process, output, wait_until};
use crate::strace::Strace;
use crate::sys;

pub(super) fn cases() -> Vec<Case> {
    let proxied = Case::both("relay.proxy", 60, proxy);
    let asked = Case::both("relay.proxy-queries", 60, asks);
    let reads = Case::both(
        "relay.proxy-supervisor-reads-no-packet",
        60,
        supervisor_reads_no_packet,
    );
    let restarted = Case::both("relay.proxy-restores-memberships", 60, restores_memberships);
    let ignores = Case::both(
        "relay.proxy-ignores-queries-in-unicast-frames",
        60,
        ignores_unicast_frames,
    );
    let elects = Case::both("relay.proxy-elects-querier-on-tun", 60, elects_on_tun);
    let on_top = Case::both(
        "relay.proxy-ignores-interfaces-on-top",
        60,
        ignores_interfaces_on_top,
    );
    [proxied, asked, reads, restarted, ignores, elects, on_top]
        .into_iter()
        .flatten()
        .collect()
}

/// Tests that a membership report adds a rule, and that the last leave removes it.
fn proxy(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let leaf = row.leaf(0)?;
    let wanted = group(family, 1);
    let mut relay = RunningRelay::start(context, row.relay(0), ["--proxy", "left -> right, leaf0"])?;
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

/// Tests that the relay sends queries: a host that has joined before the relay was started reports only in response
/// to a query.
fn asks(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let wanted = group(family, 1);
    let receiver = Receiver::new(row.receiver(), wanted)?;
    // After this time the host's kernel sends no unsolicited report.
    std::thread::sleep(UNASKED);
    let mut relay = RunningRelay::start(context, row.relay(0), ["--proxy", "left -> right"])?;
    wait_until("the host has sent a report", ANSWER, || {
        Ok(relay
            .stats()?
            .text("/rules/0/rule")
            .contains(&wanted.ip().to_string()))
    })?;
    let sender = Sender::new(row.sender(), wanted, 8)?;
    sender.send(0..100, usual)?;
    receiver.expect(0..100, usual)
}

/// Tests that the supervisor, which holds the packet sockets at which IGMP and MLD messages arrive, never reads from
/// them.
fn supervisor_reads_no_packet(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let wanted = group(family, 1);
    let mut relay = RunningRelay::start(context, row.relay(0), ["--proxy", "left -> right"])?;
    let supervisor = relay.supervisor();
    let calls = "trace=read,readv,pread64,preadv,preadv2,recvfrom,recvmsg,recvmmsg,mmap,splice";
    let strace = Strace::attach(supervisor, &["-y", "-e", calls], Path::new("/mnt/reads"))?;
    let mut sockets = packet_sockets(supervisor)?;
    let receiver = Receiver::new(row.receiver(), wanted)?;
    relay.stats_when("there is a rule", |stats| {
        stats.text("/rules/0/rule").contains(&wanted.ip().to_string())
    })?;
    drop(receiver);
    relay.stats_when("the rule is gone", |stats| stats.text("/rules/0/rule").is_empty())?;
    sockets.extend(packet_sockets(supervisor)?);
    let written = strace.finish()?;
    ensure!(!sockets.is_empty(), "the supervisor holds no packet socket");
    for line in written.lines() {
        let read = sockets
            .iter()
            .find(|inode| line.contains(&format!("<socket:[{inode}]>")));
        ensure!(read.is_none(), "the supervisor reads a packet socket: {line}");
    }
    // The supervisor receives the worker's messages by recvmsg(2), so the trace is not empty.
    ensure!(
        written.contains("recvmsg("),
        "strace has seen no report:\n{written}"
    );
    Ok(())
}

/// Returns the inode numbers of the packet sockets that a process has open.
fn packet_sockets(process: Process) -> Result<BTreeSet<String>> {
    let proc = format!("/proc/{}", process.id());
    let table = std::fs::read_to_string(format!("{proc}/net/packet"))?;
    let lines = table.lines().skip(1);
    let all: BTreeSet<&str> = lines.filter_map(|line| line.split_whitespace().last()).collect();
    let mut own = BTreeSet::new();
    for entry in std::fs::read_dir(format!("{proc}/fd"))? {
        let target = std::fs::read_link(entry?.path()).unwrap_or_default();
        let target = target.to_string_lossy().into_owned();
        let inode = target
            .strip_prefix("socket:[")
            .and_then(|rest| rest.strip_suffix(']'));
        own.extend(inode.filter(|inode| all.contains(inode)).map(str::to_owned));
    }
    Ok(own)
}

/// Tests a kill of the querier's process: the rules stay, and its successor sends a general query and processes a
/// leave.
fn restores_memberships(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let wanted = group(family, 1);
    let mut relay = RunningRelay::start(context, row.relay(0), ["--proxy", "left -> right"])?;
    let sender = Sender::new(row.sender(), wanted, 8)?;
    let receiver = Receiver::new(row.receiver(), wanted)?;
    let is_wanted = |rule: &str| rule.contains(&wanted.ip().to_string());
    relay.stats_when("there is a rule", |stats| is_wanted(stats.text("/rules/0/rule")))?;
    let queries = mld_queries(&row)?;
    let before = relay.stats()?.number("/querier/pid");
    Process::of(u32::try_from(before)?).signal(Signal::KILL)?;
    let stats = relay.stats_when("the querier has a successor", |stats| {
        stats.number("/querier/restarts") == 1 && ![0, before].contains(&stats.number("/querier/pid"))
    })?;
    ensure!(is_wanted(stats.text("/rules/0/rule")), "the rule is gone");
    sender.send(0..100, usual)?;
    receiver.expect(0..100, usual)?;
    if family == Family::V6 {
        wait_until("a general query has arrived", Duration::from_secs(5), || {
            Ok(mld_queries(&row)? > queries)
        })?;
    }
    drop(receiver);
    relay.stats_when("the rule is gone", |stats| stats.text("/rules/0/rule").is_empty())?;
    joined(&row, &wanted.ip().to_string(), false)
}

/// Returns the number of MLD queries that the receiver's kernel has received.
fn mld_queries(row: &RelayRow) -> Result<u64> {
    let counters = row
        .receiver()
        .enter(|| Ok(std::fs::read_to_string("/proc/thread-self/net/snmp6")?))?;
    let mut words = counters.split_whitespace();
    words.find(|word| *word == "Icmp6InGroupMembQueries");
    Ok(words.next().context("no such counter")?.parse()?)
}

/// Time in which a host sends unsolicited reports after a join: Linux sends two, each within a second (RFC 3376
/// section 8.11, RFC 3810 section 9.11).
const UNASKED: Duration = Duration::from_secs(3);

/// Time limit for a host's response to a query. The maximum response time is 10 seconds (RFC 3376 section 8.3), and
/// the machine may be busy.
const ANSWER: Duration = Duration::from_secs(20);

/// Waits until the relay's kernel has joined the group upstream (`wanted` is true), or left it.
fn joined(row: &RelayRow, group: &str, wanted: bool) -> Result<()> {
    wait_until("the kernel has joined, or left", Duration::from_secs(5), || {
        let mut ip = std::process::Command::new("ip");
        let shown = row
            .relay(0)
            .enter(|| crate::process::output(ip.args(["maddress", "show", "left"])))?;
        Ok(shown.contains(group) == wanted)
    })
    .map(drop)
}

/// Tests that a forged query with a lower source address than the relay's, in a frame that only the relay receives, to
/// its own address or to a group that no host has joined, neither ends a membership nor ends the relay's role as
/// querier, and that the same query in a frame to all hosts ends the role. The relay's role is visible in its reaction
/// to a leave: only a querier queries the other hosts and ends the membership two seconds later.
fn ignores_unicast_frames(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let wanted = group(family, 1);
    let mut relay = RunningRelay::start(context, row.relay(0), ["--proxy", "left -> right"])?;
    let joined = |relay: &mut RunningRelay| -> Result<Receiver> {
        let receiver = Receiver::new(row.receiver(), wanted)?;
        relay.stats_when("there is a rule", |stats| {
            stats.text("/rules/0/rule").contains(&wanted.ip().to_string())
        })?;
        // Later reports of the same join would prolong the membership.
        std::thread::sleep(UNASKED);
        Ok(receiver)
    };
    let forger = Forger::new(&row, family)?;

    let receiver = joined(&mut relay)?;
    let other_group = match family {
        Family::V4 => [1, 0, 0x5e, 0x7f, 1, 2],
        Family::V6 => [0x33, 0x33, 0xff, 0x7f, 1, 2],
    };
    for to in [forger.relay, other_group] {
        for query in [Query::general(), Query::group(wanted.ip())] {
            forger.send(&query, to)?;
        }
    }
    // A membership that the query for the group ended would expire after two seconds.
    std::thread::sleep(LEFT);
    let sender = Sender::new(row.sender(), wanted, 8)?;
    sender.send(0..100, usual)?;
    receiver.expect(0..100, usual)?;
    drop(receiver);
    relay.stats_when("the rule is gone", |stats| stats.text("/rules/0/rule").is_empty())?;

    let receiver = joined(&mut relay)?;
    let all_hosts = match family {
        Family::V4 => [1, 0, 0x5e, 0, 0, 1],
        Family::V6 => [0x33, 0x33, 0, 0, 0, 1],
    };
    forger.send(&Query::general(), all_hosts)?;
    relay.wait_until_idle()?;
    drop(receiver);
    std::thread::sleep(LEFT);
    let stats = relay.stats()?;
    ensure!(
        !stats.text("/rules/0/rule").is_empty(),
        "the relay has queried the hosts although another router is the querier"
    );
    Ok(())
}

/// Tests the election of the querier on an interface without link-layer header, whose packets the kernel delivers as
/// `PACKET_HOST`: the relay is the querier until it receives a query with a lower source address.
fn elects_on_tun(context: &Context, family: Family) -> Result<()> {
    let (own, lower) = match family {
        Family::V4 => ("10.9.0.2/24", "10.9.0.1"),
        Family::V6 => ("fe80::9/64", "fe80::1"),
    };
    let row = RelayRow::new(1)?;
    let tun = row.relay(0).enter(|| {
        let tun = sys::tun("tun0")?;
        ip("link set tun0 up")?;
        add_address("tun0", own)?;
        Ok(tun)
    })?;
    let group = group(family, 1).ip();
    let mut relay = RunningRelay::start(context, row.relay(0), ["--proxy", "left -> tun0"])?;
    let join = |relay: &mut RunningRelay| {
        rustix::io::write(&tun, &host_message(group, true)?)?;
        relay.stats_when("there is a rule", |stats| {
            stats.text("/rules/0/rule").contains(&group.to_string())
        })
    };
    let leave = || rustix::io::write(&tun, &host_message(group, false)?).map_err(anyhow::Error::from);

    join(&mut relay)?;
    leave()?;
    relay.stats_when("the rule is gone", |stats| stats.text("/rules/0/rule").is_empty())?;

    join(&mut relay)?;
    let (query, _) = Query::general()
        .packet(lower.parse()?)
        .context("the families differ")?;
    rustix::io::write(&tun, &query)?;
    leave()?;
    relay.wait_until_idle()?;
    std::thread::sleep(LEFT);
    ensure!(
        !relay.stats()?.text("/rules/0/rule").is_empty(),
        "the relay has queried the hosts although another router is the querier"
    );
    Ok(())
}

/// Tests that a report for an interface on top of the relay's, such as a VLAN's, adds no rule for the interface below:
/// the datagrams of such a rule would arrive without a tag, where no host has joined the group.
fn ignores_interfaces_on_top(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let top = [2, 0, 0, 0, 0, 5];
    row.relay(0).enter(|| {
        ip("link add link right name top address 02:00:00:00:00:05 type macvlan mode bridge")?;
        ip("link set top up")?;
        // A kernel without VLAN interfaces delivers frames with a tag to packet sockets as those for another host.
        if let Err(error) = ip("link add link right name vlan type vlan id 7") {
            eprintln!("the VLAN has no interface: {error:#}");
            return Ok(());
        }
        ip("link set vlan up")
    })?;
    let wire = row.receiver().enter(|| packet_socket("left"))?;
    let mut relay = RunningRelay::start(context, row.relay(0), ["--proxy", "left -> right"])?;
    let [on_top, in_vlan, wanted] = [1, 2, 3].map(|number| group(family, number).ip());
    for (group, to, tag) in [
        (on_top, top, &[][..]),
        (in_vlan, multicast_address(in_vlan), &[0x81, 0, 0, 7]),
        (wanted, multicast_address(wanted), &[]),
    ] {
        rustix::io::write(&wire, &frame(to, tag, &host_message(group, true)?))?;
    }
    // The querier processes messages in the order of their arrival, and the supervisor its reports, so rules for the
    // other groups would exist now.
    let is_wanted = |rule: &str| rule.contains(&wanted.to_string());
    let rules =
        |stats: &RelayStats| [0, 1, 2].map(|rule| stats.text(&format!("/rules/{rule}/rule")).to_owned());
    let stats = relay.stats_when("there is a rule", |stats| {
        rules(stats).iter().any(|rule| is_wanted(rule))
    })?;
    let rules = rules(&stats);
    ensure!(
        is_wanted(&rules[0]) && rules[1].is_empty(),
        "instead of one rule for {wanted}: {rules:?}"
    );
    joined(&row, &wanted.to_string(), true)?;
    joined(&row, &on_top.to_string(), false)?;
    joined(&row, &in_vlan.to_string(), false)
}

/// Returns the Ethernet address to which packets to a multicast group are sent (RFC 1112 section 6.4, RFC 2464 section
/// 7).
fn multicast_address(group: IpAddr) -> [u8; 6] {
    match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            [1, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

/// Returns an Ethernet frame with an IP packet. `tag` is its VLAN tag, or empty.
fn frame(to: [u8; 6], tag: &[u8], packet: &[u8]) -> Vec<u8> {
    let own = [2, 0, 0, 0, 0, 0x66];
    let ethertype = match packet[0] >> 4 {
        4 => [8, 0],
        _ => [0x86, 0xdd],
    };
    [&to[..], &own, tag, &ethertype, packet].concat()
}

/// Opens a packet socket on an interface of the current network namespace.
fn packet_socket(interface: &str) -> Result<OwnedFd> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    let index = rustix::net::netdevice::name_to_index(&socket, interface)?;
    Ok(sys::packet_socket(index)?)
}

/// Returns an IP packet with an IGMPv2 or MLDv1 message of a host that joins or leaves a group (RFC 2236 section 2, RFC
/// 2710 section 3).
fn host_message(group: IpAddr, joins: bool) -> Result<Vec<u8>> {
    match group {
        IpAddr::V4(group) => {
            let to = if joins { group } else { Ipv4Addr::new(224, 0, 0, 2) };
            let mut message = [&[if joins { 0x16 } else { 0x17 }, 0, 0, 0][..], &group.octets()].concat();
            set_checksum(&mut message, 2, Sum::new());
            let mut packet = vec![0x46, 0xc0, 0, 32, 0, 0, 0, 0, 1, 2, 0, 0, 10, 9, 0, 7];
            packet.extend(to.octets());
            packet.extend([0x94, 4, 0, 0]);
            set_checksum(&mut packet, 10, Sum::new());
            packet.extend(message);
            Ok(packet)
        }
        IpAddr::V6(group) => {
            let to = if joins { group } else { "ff02::2".parse()? };
            let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7);
            let mut message = vec![if joins { 131 } else { 132 }, 0, 0, 0, 0, 0, 0, 0];
            message.extend(group.octets());
            set_checksum(&mut message, 2, Sum::pseudo(from.into(), to.into(), 58, 24));
            let mut packet = vec![0x60, 0, 0, 0, 0, 32, 0, 1];
            packet.extend([from.octets(), to.octets()].as_flattened());
            packet.extend([58, 0, 5, 2, 0, 0, 1, 0]);
            packet.extend(message);
            Ok(packet)
        }
    }
}

/// Sets the checksum at offset `at`, which is zero. `pseudo` is the sum of the pseudo-header.
fn set_checksum(bytes: &mut [u8], at: usize, pseudo: Sum) {
    let sum = pseudo.add(bytes).finish();
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Time after which a membership has ended that a querier has queried for: two seconds and some for a busy machine.
const LEFT: Duration = Duration::from_secs(3);

/// A packet socket of the receiver's namespace that sends queries from an address lower than the relay's.
struct Forger {
    wire: OwnedFd,
    from: IpAddr,
    /// Ethernet address of the relay.
    relay: [u8; 6],
}

impl Forger {
    fn new(row: &RelayRow, family: Family) -> Result<Self> {
        let wire = row.receiver().enter(|| packet_socket("left"))?;
        let link = row
            .relay(0)
            .enter(|| output(Command::new("ip").args(["-o", "link", "show", "right"])))?;
        let mut words = link.split_whitespace().skip_while(|word| *word != "link/ether");
        let address = words.nth(1).context("no Ethernet address")?;
        let bytes: Vec<u8> = address
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            wire,
            from: family.pick(
                Ipv4Addr::new(10, 0, 0, 9),
                Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1),
            ),
            relay: bytes.try_into().ok().context("no Ethernet address")?,
        })
    }

    fn send(&self, query: &Query, to: [u8; 6]) -> Result<()> {
        let (packet, _) = query.packet(self.from).context("the families differ")?;
        rustix::io::write(&self.wire, &frame(to, &[], &packet))?;
        Ok(())
    }
}
