//! Tests of single packets of the engine, most of them TCP segments, with the exact changes of counters.

mod acknowledgements;
mod closing;
mod data;
mod decider;
mod decider_clients;
mod decider_datagrams;
mod decider_limits;
mod dns_streams;
mod events;
mod flow_events;
mod forwards;
mod handshake;
mod idle;
mod intruders;
mod joined;
mod jumps;
mod limits;
mod loopback_forwards;
mod names;
mod operator;
mod orphans;
mod owned;
mod path_mtu;
mod proxies;
mod proxy_names;
mod published;
mod recovery;
mod refusals;
mod senders;
mod stalled;
mod timers;
mod window;

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use pontoon_engine::config::{Protocol, Published};
use pontoon_engine::{Config, Counters, Failure, FlowId, Kind, Readiness, WorkerId};
use pontoon_simnet::app::{ConnectionEnd, FinalAction, Script};
use pontoon_simnet::frames::{Datagram, IcmpMessage, Packet, Segment, URG};
use pontoon_simnet::host::{ConnectResult, HostPlan};
use pontoon_simnet::settings::{GUEST_V4, GUEST_V6, SERVER_V4, SERVER_V6, config};
use pontoon_simnet::transcript::{
    ACK, FIN, GUEST, Given, PLAIN, PORT, PSH, RST, SERVER, START, SYN, down, syn, syn_ack, up,
};

/// Address of a client of a published port.
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns a SYN like [`syn`] between other addresses.
fn syn_between(from: SocketAddr, to: SocketAddr) -> Segment {
    Segment { from, to, ..syn() }
}

/// Script of a peer that reads, sends nothing, and never closes.
const SILENT: Script = Script {
    end: FinalAction::Reset(u64::MAX),
    patience: Duration::from_secs(1_000_000),
    ..Script::SINK
};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns the guest's SYN from port `from` to port `to`.
fn dial(from: u16, to: u16) -> Segment {
    syn_between((GUEST_V4, from).into(), (SERVER_V4, to).into())
}

fn refusal(of: &Segment) -> Segment {
    Segment {
        window: 0,
        ..Segment::between(of.to, of.from).with(RST.and(ACK), 0, of.seq + 1)
    }
}

/// Returns an engine whose host has servers on the ports 80 to 89.
fn given(config: Config, host: HostPlan) -> Given {
    let mut given = Given::new(config, PLAIN, host);
    for port in 80..90 {
        given.host.serve(port, ConnectResult::Now, Script::SINK);
    }
    given
}

/// Returns a configuration in which the guest's TCP port 80 is published at these addresses of the host.
fn published(at: &[IpAddr]) -> Config {
    let published = at
        .iter()
        .map(|&host| Published::new(Protocol::Tcp, (host, 8080).into(), 80));
    Config {
        published: published.collect(),
        ..config(1500)
    }
}

fn any() -> Config {
    published(&[Ipv4Addr::UNSPECIFIED.into()])
}

#[track_caller]
fn is_refused(given: &mut Given, of: &Segment) {
    given.up(of.clone());
    assert_eq!(given.take_one(), refusal(of));
}

#[track_caller]
fn is_answered(given: &mut Given, of: &Segment) {
    given.up(of.clone());
    let answer = given.take_one();
    assert_eq!((answer.flags, answer.ack), (SYN.and(ACK), of.seq + 1));
    assert_eq!((answer.from, answer.to), (of.to, of.from));
}

/// Opens a connection to a server that closes at once, and closes it, so that it enters TIME-WAIT. The sequence
/// numbers are those of [`Given::open`].
fn into_time_wait(given: &mut Given, guest: SocketAddr, server: SocketAddr) {
    let up = |flags, seq, ack| Segment::between(guest, server).with(flags, seq, ack);
    let down = |flags, seq, ack| Segment::between(server, guest).with(flags, seq, ack);
    given.up(syn_between(guest, server));
    given.down(Segment {
        mss: Some(1460),
        ..down(SYN.and(ACK), 0, 1001)
    });
    given.up(up(ACK, 1001, 1));
    given.pass(millis(1));
    given.down(down(FIN.and(ACK), 1, 1001));
    given.up(up(FIN.and(ACK), 1001, 2));
    given.down(down(ACK, 2, 1002));
}

fn closing_server(given: &mut Given) {
    given.host.serve(PORT, ConnectResult::Now, Script::source(0));
}

/// Checks that the engine forwards data from the host on the accepted connection of `peer`.
#[track_caller]
fn serves(given: &mut Given, peer: SocketAddr) {
    let syn = given.take_one();
    assert_eq!((syn.flags, syn.from), (SYN, peer));
    let answer = Segment {
        mss: Some(1460),
        ..Segment::between(syn.to, syn.from).with(SYN.and(ACK), 500, syn.seq.wrapping_add(1))
    };
    given.packet_up(&Packet::Tcp(answer));
    given.pass(millis(5));
    let bytes = take_bytes(given);
    assert_eq!((bytes, given.engine.flows()), (100, 1));
}

/// Returns the last packet to the guest, which must be a segment.
#[track_caller]
fn take_last(given: &mut Given) -> Segment {
    match given.take().pop() {
        Some(Packet::Tcp(segment)) => segment,
        other => panic!("{other:?} is no segment"),
    }
}

/// Returns the number of data bytes to the guest; all packets must be segments.
#[track_caller]
fn take_bytes(given: &mut Given) -> usize {
    let len = |packet| match packet {
        Packet::Tcp(segment) => segment.payload.len(),
        other => panic!("{other:?} is no segment"),
    };
    given.take().into_iter().map(len).sum()
}

/// A readiness with all flags set.
const TROUBLE: Readiness = Readiness {
    readable: true,
    writable: true,
    end: true,
    error: true,
    urgent: true,
};

fn flow(index: u32, generation: u16) -> FlowId {
    FlowId {
        kind: Kind::Tcp,
        worker: WorkerId(0),
        index,
        generation,
    }
}

/// Adds one frame in each direction to the expected counters.
fn one_each(counters: &mut Counters) {
    counters.frames_up += 1;
    counters.frames_down += 1;
}

#[track_caller]
fn ignores(given: &mut Given, segment: Segment) {
    given.up(segment);
    given.quiet();
    given.counted(|counters| counters.frames_up += 1);
}

#[track_caller]
fn challenges(given: &mut Given, segment: Segment) {
    given.up(segment);
    given.down(down(ACK, 1, 1001));
    given.quiet();
    given.counted(|counters| {
        one_each(counters);
        counters.tcp_challenges += 1;
    });
}

#[track_caller]
fn withholds(given: &mut Given, segment: Segment) {
    given.up(segment);
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.tcp_challenges_withheld += 1;
    });
}

#[track_caller]
fn ends(given: &mut Given, segment: Segment) {
    given.up(segment);
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.tcp_reset_by_guest += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}
