//! Cases about unusual frames: several datagrams in one frame, fragments, VLAN tags, jumbo frames.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use pontoon_netns::{add_address, ip};

use super::traffic::{self, Receiver, Sender};
use super::world::{RelayRow, RunningRelay};
use super::{MANY, group, in_a_row, onward, reload, usual};
use crate::case::{Case, Context, Family};
use crate::process::{output, wait_until};
use crate::sys;

pub(super) fn cases() -> Vec<Case> {
    let both = [
        Case::both("relay.super-frames-through-a-chain", 30, super_frames),
        Case::both("relay.jumbo-frames", 30, jumbo),
    ];
    let one = [
        Case::new("relay.macvlan-receives-its-own-datagrams", 20, on_top),
        Case::new("relay.foreign-vlan-tag", 20, tagged),
        Case::new("relay.ring-stopped-by-a-packet-is-reopened", 30, stopped),
        Case::new("relay.macvlan-receives-fragments", 20, fragments_on_top),
    ];
    both.into_iter().flatten().chain(one).collect()
}

/// Tests a sender whose kernel passes many datagrams in one packet (UDP_SEGMENT), which each relay forwards as one
/// packet.
fn super_frames(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(3)?;
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

/// Tests that a frame for an interface on top of another one, such as a VLAN's, is received once, on the upper
/// interface.
fn on_top(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let own = on_top_of_left(&row)?;
    // Without a socket the host's IP stack would answer by an ICMP error.
    let _socket = row.relay(0).enter(|| Ok(UdpSocket::bind(own)?))?;
    let (below, above) = (group(Family::V4, 1), group(Family::V4, 2));
    let rules = [onward(own, below), format!("top {own} -> right {above}")];
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &rules)?;
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

/// Tests fragments for an interface on top of another one, on which a ring was opened first.
fn fragments_on_top(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let own = on_top_of_left(&row)?;
    let _socket = row.relay(0).enter(|| Ok(UdpSocket::bind(own)?))?;
    let [below, above] = [1, 2].map(|number| group(Family::V4, number));
    let below_rule = format!("left {below} -> right *:*");
    reload::write(std::slice::from_ref(&below_rule))?;
    let mut relay = RunningRelay::start(context, row.relay(0), ["--config", reload::FILE])?;
    reload::write(&[below_rule, format!("top {own} -> right {above}")])?;
    relay.signal(rustix::process::Signal::HUP)?;
    // A ring that is no longer needed receives fragments until it is closed.
    relay.stats_when("there are both rules, and two rings", |stats| {
        let rings = row
            .relay(0)
            .enter(|| Ok(std::fs::read_to_string("/proc/thread-self/net/packet")?));
        stats.text("/rules/1/rule").starts_with("top") && rings.is_ok_and(|rings| rings.lines().count() == 3)
    })?;
    let receivers = (
        Receiver::new(row.receiver(), below)?,
        Receiver::new(row.receiver(), above)?,
    );
    Sender::new(row.sender(), own, 8)?.send(0..50, |_| 4000)?;
    receivers.1.expect(0..50, |_| 4000)?;
    Sender::new(row.sender(), below, 8)?.send(0..50, usual)?;
    receivers.0.expect(0..50, usual)?;
    relay.stats()?.add_up()
}

/// Creates an interface `top` on top of `left`, and returns an address on it that the sender can reach.
fn on_top_of_left(row: &RelayRow) -> Result<SocketAddr> {
    row.relay(0).enter(|| {
        ip("link add link left name top address 02:00:00:00:00:05 type macvlan mode bridge")?;
        add_address("top", "10.5.0.2/24")?;
        ip("link set top up")
    })?;
    row.sender().enter(|| {
        add_address("right", "10.5.0.1/24")?;
        ip("neigh replace 10.5.0.2 lladdr 02:00:00:00:00:05 dev right nud permanent")
    })?;
    Ok(SocketAddr::from(([10, 5, 0, 2], 6000)))
}

/// Tests that frames for a VLAN without an interface are not forwarded, and that a priority tag (VLAN 0) has no
/// effect.
fn tagged(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(Family::V4, 1), group(Family::V4, 2));
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[onward(from, to)])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let sender = Sender::new(row.sender(), from, 8)?;
    let wire = row.sender().enter(|| {
        // Disables the checksum offload, so that the frame can be sent again with its complete checksum.
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

/// Tests jumbo frames, longer than the default slots of a ring, on both sides, with one or several datagrams in a
/// frame.
fn jumbo(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    for (node, interface) in [
        (row.sender(), "right"),
        (row.relay(0), "left"),
        (row.relay(0), "right"),
        (row.receiver(), "left"),
    ] {
        node.enter(|| ip(&format!("link set {interface} mtu 9000")))?;
    }
    let (from, to) = (group(family, 1), group(family, 2));
    let mut relay = RunningRelay::with_rules(context, row.relay(0), &[onward(from, to)])?;
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

/// Tests that a ring is opened again each time the kernel stops it, because of a packet from a virtual machine that
/// requests UDP fragmentation offload.
fn stopped(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(Family::V4, 1), group(Family::V4, 2));
    let tap = row.relay(0).enter(|| {
        let tap = sys::tap("guest")?;
        add_address("guest", "10.6.0.2/24")?;
        ip("link set guest up")?;
        Ok(tap)
    })?;
    let rule = format!("guest {from} -> right {to}");
    let mut relay = RunningRelay::start(context, row.relay(0), ["--workers", "2", "--rule", &rule])?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let send = |number: u32, segmentation: [u8; 10]| -> Result<()> {
        rustix::io::write(&tap, &[&segmentation, &*frame(from, number)?].concat())?;
        Ok(())
    };
    // struct virtio_net_hdr: no checksum to complete; gso_type none, or the old UDP type (3) with gso_size 8.
    let (whole, in_fragments) = ([0; 10], [0, 3, 42, 0, 8, 0, 0, 0, 0, 0]);
    for round in 1..=2 {
        for number in 0..20 {
            send(number, whole)?;
            receiver.take(number..number + 1, |_| 100)?;
        }
        send(0, in_fragments)?;
        wait_until("the ring is open again", Duration::from_secs(10), || {
            send(20, whole)?;
            Ok(receiver.next(Duration::from_millis(100))?.is_some())
        })?;
        // On a busy machine the ring may be open again before the first datagram arrives, so several were sent.
        while receiver.next(Duration::from_millis(300))?.is_some() {}
        let stats = relay.stats()?;
        stats.add_up()?;
        stats.expect("/interfaces/0/reopened", round)?;
        ensure!(
            stats.number("/interfaces/0/kernel_dropped") > 0,
            "the kernel did not stop the ring"
        );
    }
    // Without packets no process may wake up. Within two seconds the timers of the reopened ring have expired.
    std::thread::sleep(Duration::from_secs(2));
    let before = relay.waits()?;
    // The test measures that nothing happens during this time.
    std::thread::sleep(Duration::from_secs(2));
    let waits = relay.waits()? - before;
    ensure!(
        waits == 0,
        "the supervisor has woken up {waits} times without a packet"
    );
    Ok(())
}

/// Returns an Ethernet frame with datagram `number` of 100 bytes, without a UDP checksum.
fn frame(to: SocketAddr, number: u32) -> Result<Vec<u8>> {
    let IpAddr::V4(group) = to.ip() else {
        bail!("{to} is not IPv4");
    };
    let payload = traffic::payload(number, 100);
    let (udp_len, len) = (payload.len() as u16 + 8, payload.len() as u16 + 28);
    let [_, b, c, d] = group.octets();
    let ethernet = [1, 0, 0x5e, b & 0x7f, c, d, 2, 0, 0, 0, 0, 6, 8, 0];
    let mut ip = vec![0x45, 0];
    ip.extend(len.to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 8, 17, 0, 0, 10, 6, 0, 1]);
    ip.extend(group.octets());
    let words = ip
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let udp = [7000, to.port(), udp_len, 0].map(u16::to_be_bytes);
    Ok([&ethernet, &*ip, udp.as_flattened(), &payload].concat())
}
