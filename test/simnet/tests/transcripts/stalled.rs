//! Tests of stalled connections: the guest does not acknowledge data that is in the host's receive buffers.

use super::*;

const MIB: u64 = 1 << 20;

/// Returns a host with large receive buffers and servers on the ports 80, 81, ... that send this many MiB each.
fn servers(sizes: &[u64]) -> Given {
    let host = HostPlan {
        receive_buffer: 64 * MIB,
        ..HostPlan::default()
    };
    let mut given = Given::new(config(1500), PLAIN, host);
    for (port, size) in (80..).zip(sizes) {
        given
            .host
            .serve(port, ConnectResult::Now, Script::source(size * MIB));
    }
    given
}

/// Connects the guest to `port` with a receive window of `window` bytes. Returns the engine's initial sequence
/// number.
fn connect(given: &mut Given, port: u16, window: u16) -> u32 {
    let syn = dial(port, port);
    given.up(syn.clone());
    let answer = given.take_one();
    let ack = Segment::between(syn.from, syn.to).with(ACK, 1001, answer.seq.wrapping_add(1));
    given.packet_up(&Packet::Tcp(Segment { window, ..ack }));
    given.take();
    answer.seq
}

fn evicted(given: &Given) -> u64 {
    given.engine.counters().tcp_stalled_evicted
}

#[test]
fn largest_stalled_connection_is_reset_beyond_the_budget() {
    let mut given = servers(&[40, 40, 40, 44, 40, 40, 40]);
    let ports = 80..87;
    for port in ports.clone() {
        connect(&mut given, port, 0);
    }
    given.pass(seconds(100));
    assert_eq!(
        (evicted(&given), given.engine.flows(), given.host.open()),
        (1, 6, 6)
    );
    assert_eq!(given.host.outcomes()[&83], Some(ConnectionEnd::Reset));
    given.pass(seconds(100));
    assert_eq!((evicted(&given), given.engine.flows()), (1, 6));
}

/// Tests that the data of connections that have ended does not count against the budget of stalled connections.
#[test]
fn ended_connections_free_their_share_of_the_budget() {
    let mut given = servers(&[40; 18]);
    for first in [80, 86, 92] {
        for port in first..first + 6 {
            connect(&mut given, port, 0);
        }
        given.pass(seconds(100));
        assert_eq!((evicted(&given), given.engine.flows()), (0, 6));
        for port in first..first + 6 {
            let syn = dial(port, port);
            given.up(Segment::between(syn.from, syn.to).with(RST, 1001, 0));
        }
        assert_eq!(given.engine.flows(), 0);
        given.take();
    }
}

/// Tests that a connection counts as stalled if its window never closes and admits single bytes.
#[test]
fn guest_that_acknowledges_single_bytes_is_stalled() {
    let mut given = servers(&[40; 7]);
    let firsts: Vec<u32> = (80..87).map(|port| connect(&mut given, port, 1)).collect();
    for taken in 1..=20 {
        given.pass(seconds(5));
        given.take();
        for (port, first) in (80..87).zip(&firsts) {
            let syn = dial(port, port);
            let ack = Segment::between(syn.from, syn.to).with(ACK, 1001, first.wrapping_add(1 + taken));
            given.packet_up(&Packet::Tcp(Segment { window: 1, ..ack }));
        }
    }
    assert_eq!((evicted(&given), given.host.open()), (1, 6));
}
