//! Tests of the limit on connections to the DNS forwarder.

use super::*;

/// Maximum number of connections to the DNS forwarder.
const MOST: u16 = 64;

/// Returns a configuration with a resolver, and the address of the DNS forwarder.
fn resolved() -> (Config, SocketAddr) {
    let config = Config {
        resolvers: vec![(SERVER_V4, 53).into()],
        ..config(1500)
    };
    let dns = config.plan.v4.as_ref().and_then(|v4| v4.dns);
    let to = (dns.expect("an address of the forwarder"), 53).into();
    (config, to)
}

fn from(port: u16) -> SocketAddr {
    SocketAddr::from((GUEST_V4, port))
}

/// Opens a connection from the guest's port `port` to the DNS forwarder, whose resolver acts by `script`. Returns the
/// packets to the guest, the last of which is the SYN-ACK.
fn open(given: &mut Given, to: SocketAddr, port: u16, seq: u32, script: Script) -> Vec<Segment> {
    given.host.serve(53, ConnectResult::Now, script);
    given.up(Segment {
        seq,
        ..syn_between(from(port), to)
    });
    let segments = take_segments(given);
    let answer = segments.last().expect("an answer");
    assert_eq!(
        (answer.flags, answer.to, answer.ack),
        (SYN.and(ACK), from(port), seq + 1)
    );
    given.packet_up(&Packet::Tcp(Segment::between(from(port), to).with(
        ACK,
        seq + 1,
        answer.seq.wrapping_add(1),
    )));
    segments
}

/// Returns the packets to the guest, all of which must be segments.
#[track_caller]
fn take_segments(given: &mut Given) -> Vec<Segment> {
    let segment = |packet| match packet {
        Packet::Tcp(segment) => segment,
        other => panic!("{other:?} is no segment"),
    };
    given.take().into_iter().map(segment).collect()
}

/// Opens the maximum number of connections to the DNS forwarder, one after the other, from the ports 1 to [`MOST`].
/// Returns the SYN-ACK of the first.
fn open_all(given: &mut Given, to: SocketAddr) -> Segment {
    let mut first = None;
    for port in 1..=MOST {
        let segments = open(given, to, port, 1000, Script::SINK);
        assert_eq!(segments.len(), 1, "{segments:?}");
        first = first.or(segments.into_iter().next());
        given.pass(millis(1));
    }
    first.expect("a SYN-ACK")
}

#[test]
fn longest_idle_dns_connection_is_reset_for_a_new_one() {
    let (config, to) = resolved();
    let mut given = given(config, HostPlan::default());
    let first = open_all(&mut given, to);
    // A query makes the first connection the one that was idle for the shortest time.
    let query = [0, 12, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec();
    let query = Segment::between(from(1), to)
        .with(ACK, 1001, first.seq.wrapping_add(1))
        .carrying(query);
    given.packet_up(&Packet::Tcp(query));
    given.take();
    let segments = open(&mut given, to, MOST + 1, 1000, Script::SINK);
    let [reset, _] = &segments[..] else {
        panic!("{segments:?}");
    };
    assert!(reset.flags.has(RST) && reset.to == from(2), "{reset:?}");
    assert_eq!((given.engine.flows(), given.host.open()), (64, 64));
}

/// Tests that a SYN which reopens a connection in TIME-WAIT counts as a new connection to the DNS forwarder.
#[test]
fn longest_idle_dns_connection_is_reset_for_a_reopened_one() {
    let (config, to) = resolved();
    let mut given = given(config, HostPlan::default());
    let reopened = MOST + 1;
    let answer = open(&mut given, to, reopened, 1000, Script::source(0)).remove(0);
    given.pass(millis(1));
    let fin = given.take_one();
    assert!(fin.flags.has(FIN), "{fin:?}");
    given.packet_up(&Packet::Tcp(Segment::between(from(reopened), to).with(
        FIN.and(ACK),
        1001,
        answer.seq.wrapping_add(2),
    )));
    given.take();
    open_all(&mut given, to);
    assert_eq!((given.engine.flows(), given.host.open()), (65, 64));
    given.forget_counters();
    let segments = open(&mut given, to, reopened, 100_000, Script::SINK);
    let [reset, _] = &segments[..] else {
        panic!("{segments:?}");
    };
    assert!(reset.flags.has(RST) && reset.to == from(1), "{reset:?}");
    assert_eq!((given.engine.flows(), given.host.open()), (64, 64));
    assert_eq!(given.engine.counters().dns_streams_closed, 1);
}

/// Tests that a new connection to the DNS forwarder is refused without a reset of another one if `--max-flow-rate` does
/// not permit it.
#[test]
fn dns_connection_above_the_rate_resets_no_other() {
    let (mut config, to) = resolved();
    config.max_flow_rate = Some(64);
    let mut given = given(config, HostPlan::default());
    open_all(&mut given, to);
    // The rate has permitted some flows since the first connection.
    for nth in 0..8 {
        given.up(dial(2000 + nth, 80));
    }
    given.take();
    given.forget_counters();
    is_refused(&mut given, &syn_between(from(65), to));
    given.counted(|counters| {
        one_each(counters);
        counters.flows_refused += 1;
    });
}

/// Tests that a new connection to the DNS forwarder is refused without a reset of another one if the resolvers were
/// removed.
#[test]
fn dns_connection_without_a_resolver_resets_no_other() {
    let (config, to) = resolved();
    let mut given = given(config, HostPlan::default());
    open_all(&mut given, to);
    given.engine.set_resolvers(Vec::new());
    given.forget_counters();
    is_refused(&mut given, &syn_between(from(65), to));
    given.counted(one_each);
    assert_eq!((given.engine.flows(), given.host.open()), (64, 64));
}

/// Tests that a new connection to the DNS forwarder that resets another one evicts no other flow for its slot.
#[test]
fn new_dns_connection_takes_the_slot_of_the_longest_idle_one() {
    let (mut config, to) = resolved();
    config.max_flows = 65;
    let mut given = given(config, HostPlan::default());
    open_all(&mut given, to);
    given.packet_up(&Packet::Udp(Datagram {
        from: from(5000),
        to: (SERVER_V4, 7).into(),
        payload: vec![1; 10],
    }));
    given.take();
    assert_eq!(open(&mut given, to, 65, 1000, Script::SINK).len(), 2);
    let counters = given.engine.counters();
    assert_eq!((counters.dns_streams_closed, counters.udp_evicted), (1, 0));
}
