use std::net::UdpSocket;
use std::time::Duration;

use pontoon_relay::Rule;
use pontoon_relay::counters::{InterfaceStats, OutputStats, RuleStats, WorkerStats};
use pontoon_sys::{Family, udp};

use super::*;
use crate::input::SocketInput;

/// Forwarder on the loopback interface that sends the datagrams to its port to two receivers.
struct World {
    forwarder: Forwarder,
    input: PacketInput,
    client: UdpSocket,
    receivers: [UdpSocket; 2],
}

const TABLE: u32 = 7;
const OF_INTERFACE: u32 = 1;
const OF_RULE: u32 = 2;
const OF_OUTPUTS: [u32; 2] = [3, 4];

fn loopback() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

fn world() -> World {
    let (client, ingress) = (loopback(), loopback());
    let port = ingress.local_addr().unwrap().port();
    client.connect(ingress.local_addr().unwrap()).unwrap();
    udp::enable_recv_info(&ingress, Family::V4).unwrap();
    udp::enable_pktinfo(&ingress, Family::V4).unwrap();
    let mut forwarder = Forwarder::new(Counters::map(Counters::create().unwrap()).unwrap());
    let receivers = [loopback(), loopback()];
    for (id, receiver) in (0..).zip(&receivers) {
        let socket = loopback();
        socket.connect(receiver.local_addr().unwrap()).unwrap();
        forwarder.set_sender(id, Some(Sender::new(socket.into(), Family::V4, false, true)));
    }
    World {
        forwarder,
        input: PacketInput::Socket(SocketInput::new(ingress.into(), port)),
        client,
        receivers,
    }
}

impl World {
    /// Returns a rule for the forwarder's port, with both outputs.
    fn entry(&self, row: u32) -> RuleEntry {
        let port = self.client.peer_addr().unwrap().port();
        let [a, b] = [0, 1].map(|index: usize| self.receivers[index].local_addr().unwrap());
        let rule: Rule = format!("lo 127.0.0.1:{port} -> lo {a}, lo {b} ttl 1")
            .parse()
            .unwrap();
        RuleEntry {
            table: TABLE,
            row,
            outputs: OF_OUTPUTS.into_iter().zip(0..).collect(),
            rule,
        }
    }

    fn forward_batch(&mut self) -> u64 {
        self.forwarder.forward_batch(&mut self.input, TABLE, OF_INTERFACE)
    }

    fn interface(&self) -> InterfaceStats {
        let mut stats = InterfaceStats::default();
        stats.add(&self.forwarder.counters.read(OF_INTERFACE));
        stats
    }

    fn rule(&self) -> RuleStats {
        let mut stats = RuleStats::default();
        stats.add(&self.forwarder.counters.read(OF_RULE));
        stats
    }

    fn worker(&self) -> WorkerStats {
        let mut stats = WorkerStats::default();
        stats.add(&self.forwarder.counters.read(WORKER_ROW));
        stats
    }

    fn output(&self, index: usize) -> OutputStats {
        let mut stats = OutputStats::default();
        stats.add(&self.forwarder.counters.read(OF_OUTPUTS[index]));
        stats
    }
}

#[test]
fn batch_is_one_send_for_each_output() {
    let mut world = world();
    let entry = world.entry(OF_RULE);
    world.forwarder.change(&[], vec![entry]);
    for number in 0..10_u8 {
        world.client.send(&[number; 100]).unwrap();
    }
    assert_eq!(world.forward_batch(), 10);
    assert_eq!(world.forward_batch(), 0);
    let mut buffer = [0; 200];
    for receiver in &world.receivers {
        for number in 0..10_u8 {
            assert_eq!(receiver.recv(&mut buffer).unwrap(), 100);
            assert_eq!(buffer[..100], [number; 100]);
        }
    }
    let interface = world.interface();
    assert_eq!(
        (interface.packets, interface.datagrams, interface.matched),
        (10, 10, 10)
    );
    assert_eq!((world.rule().datagrams, world.rule().bytes), (10, 1000));
    for index in [0, 1] {
        let output = world.output(index);
        assert_eq!((output.sent, output.bytes, output.sends), (10, 1000, 1));
    }
    let worker = WorkerStats {
        batches: 1,
        packets: 10,
        datagrams: 10,
        bytes: 1000,
        sent: 20,
        sent_bytes: 2000,
        ..WorkerStats::default()
    };
    assert_eq!(world.worker(), worker);
}

#[test]
fn counts_unmatched_datagrams() {
    let mut world = world();
    world.client.send(b"early").unwrap();
    assert_eq!(world.forward_batch(), 1);
    assert_eq!((world.interface().unmatched, world.interface().matched), (1, 0));
    let entry = world.entry(OF_RULE);
    world.forwarder.change(&[], vec![entry]);
    world.client.send(b"now").unwrap();
    world.forward_batch();
    world.forwarder.change(&[OF_RULE], Vec::new());
    world.client.send(b"late").unwrap();
    world.forward_batch();
    assert_eq!((world.interface().unmatched, world.interface().matched), (2, 1));
    assert_eq!(world.rule().datagrams, 1);
}

#[test]
fn output_without_a_socket_counts_its_datagrams_as_down() {
    let mut world = world();
    let entry = world.entry(OF_RULE);
    world.forwarder.change(&[], vec![entry]);
    world.forwarder.set_sender(0, None);
    world.client.send(b"one").unwrap();
    world.forward_batch();
    assert_eq!((world.output(0).down, world.output(0).sent), (1, 0));
    assert_eq!((world.output(1).down, world.output(1).sent), (0, 1));
    assert_eq!((world.worker().lost, world.worker().sent), (1, 1));
}

#[test]
fn counts_expired_ttl() {
    let mut world = world();
    let entry = world.entry(OF_RULE);
    world.forwarder.change(&[], vec![entry]);
    world.client.set_ttl(1).unwrap();
    world.client.send(b"one").unwrap();
    world.forward_batch();
    assert_eq!((world.output(0).expired, world.output(0).sent), (1, 0));
    // The other output has `ttl 1`, which replaces the TTL of the datagram.
    assert_eq!((world.output(1).expired, world.output(1).sent), (0, 1));
}

#[test]
fn rule_change_takes_effect_at_once() {
    let mut world = world();
    let entry = world.entry(OF_RULE);
    world.forwarder.change(&[], vec![entry]);
    let mut other = world.entry(9);
    other.rule.outputs.truncate(1);
    other.outputs.truncate(1);
    world.forwarder.change(&[OF_RULE], vec![other]);
    world.client.send(b"one").unwrap();
    world.forward_batch();
    assert_eq!(world.rule().datagrams, 0);
    assert_eq!(
        world.forwarder.counters.read(9)[RuleCounter::Datagrams as usize],
        1
    );
    assert_eq!((world.output(0).sent, world.output(1).sent), (1, 0));
}
