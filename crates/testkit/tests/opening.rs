//! How connections begin, and how they do not: limits, descriptors, policy, published ports. With exact counters.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use pontoon_engine::config::{Protocol, Published};
use pontoon_engine::{Config, Failure, FlowId, Instant, Kind, Readiness, WorkerId};
use pontoon_testkit::app::Script;
use pontoon_testkit::frames::{Packet, Segment};
use pontoon_testkit::host::{Answer, HostPlan, Remote};
use pontoon_testkit::settings::{GUEST_V4, GUEST_V6, SERVER_V4, SERVER_V6, config};
use pontoon_testkit::transcript::{ACK, DOWN, FIN, Given, PLAIN, PORT, RST, SYN, UP};

const START: Instant = Instant(1_000_000_000);
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn syn(from: SocketAddr, to: SocketAddr) -> Segment {
    Segment {
        flags: SYN,
        seq: 1000,
        mss: Some(1460),
        ..Segment::between(from, to)
    }
}

/// The guest's SYN from and to these ports.
fn dial(from: u16, to: u16) -> Segment {
    syn((GUEST_V4, from).into(), (SERVER_V4, to).into())
}

fn refusal(of: &Segment) -> Segment {
    Segment {
        flags: RST.and(ACK),
        ack: of.seq + 1,
        window: 0,
        ..Segment::between(of.to, of.from)
    }
}

/// A world with servers at the ports 80 to 89.
fn given(config: Config, host: HostPlan) -> Given {
    let mut given = Given::new(config, PLAIN, host);
    for port in 80..90 {
        let remote = Remote {
            answer: Answer::Now,
            script: Script::SINK,
        };
        given.host.serve(port, remote);
    }
    given
}

/// A configuration whose guest's port 80 is published at these addresses of the host.
fn published(at: &[IpAddr]) -> Config {
    let published = at.iter().map(|&host| Published {
        protocol: Protocol::Tcp,
        host: (host, 8080).into(),
        guest_port: 80,
    });
    Config {
        published: published.collect(),
        ..config(1500)
    }
}

fn any() -> Config {
    published(&[Ipv4Addr::UNSPECIFIED.into()])
}

#[track_caller]
fn one_segment(given: &mut Given) -> Segment {
    match &given.take()[..] {
        [Packet::Tcp(segment)] => segment.clone(),
        other => panic!("{other:?} is not one segment"),
    }
}

#[track_caller]
fn is_refused(given: &mut Given, of: &Segment) {
    given.up(of.clone());
    assert_eq!(one_segment(given), refusal(of));
}

#[track_caller]
fn is_answered(given: &mut Given, of: &Segment) {
    given.up(of.clone());
    let answer = one_segment(given);
    assert_eq!((answer.flags, answer.ack), (SYN.and(ACK), of.seq + 1));
    assert_eq!((answer.from, answer.to), (of.to, of.from));
}

/// Brings the connection of `given` (see [`Given::open`]'s numbers), of a server that closes at once, into TIME_WAIT.
fn into_time_wait(given: &mut Given, up: &Segment, down: &Segment) {
    given.up(Segment {
        flags: SYN,
        seq: 1000,
        ..up.clone()
    });
    given.down(Segment {
        flags: SYN.and(ACK),
        ack: 1001,
        mss: Some(1460),
        ..down.clone()
    });
    given.up(Segment {
        seq: 1001,
        ack: 1,
        ..up.clone()
    });
    given.pass(millis(1));
    given.down(Segment {
        flags: FIN.and(ACK),
        seq: 1,
        ack: 1001,
        ..down.clone()
    });
    given.up(Segment {
        flags: FIN.and(ACK),
        seq: 1001,
        ack: 2,
        ..up.clone()
    });
    given.down(Segment {
        seq: 2,
        ack: 1002,
        ..down.clone()
    });
}

fn closing_server(given: &mut Given) {
    let remote = Remote {
        answer: Answer::Now,
        script: Script::source(0),
    };
    given.host.serve(PORT, remote);
}

#[test]
fn flows_beyond_the_limit_are_refused() {
    let limited = Config {
        max_flows: 2,
        ..config(1500)
    };
    let mut given = given(limited, HostPlan::default());
    is_answered(&mut given, &dial(1, 80));
    is_answered(&mut given, &dial(2, 81));
    given.forget_counters();
    is_refused(&mut given, &dial(3, 82));
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 1;
        counters.flows_refused += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (2, 2));
}

#[test]
fn the_oldest_in_time_wait_gives_way() {
    let limited = Config {
        max_flows: 1,
        ..config(1500)
    };
    let mut given = given(limited, HostPlan::default());
    closing_server(&mut given);
    into_time_wait(&mut given, &UP, &DOWN);
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 0));
    given.forget_counters();
    is_answered(&mut given, &dial(2, 81));
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 1;
        counters.tcp_opened += 1;
    });
    assert_eq!(given.engine.flows(), 1);
}

#[test]
fn new_flows_are_limited_by_the_second() {
    let limited = Config {
        max_flow_rate: Some(2),
        ..config(1500)
    };
    let mut given = given(limited, HostPlan::default());
    is_answered(&mut given, &dial(1, 80));
    is_answered(&mut given, &dial(2, 81));
    given.forget_counters();
    is_refused(&mut given, &dial(3, 82));
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 1;
        counters.flows_refused += 1;
    });
    given.pass(millis(1000));
    given.take();
    is_answered(&mut given, &dial(4, 83));
}

#[test]
fn no_descriptor_for_a_connect() {
    let mut given = given(
        config(1500),
        HostPlan {
            descriptors: 0,
            ..HostPlan::default()
        },
    );
    is_refused(&mut given, &dial(1, 80));
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 1;
        counters.tcp_opened += 1;
        counters.tcp_connect_failed += 1;
        counters.host_exhausted += 1;
    });
    assert_eq!(given.engine.flows(), 0);
}

#[test]
fn a_starved_listener_is_fed_when_a_connection_ends() {
    let scarce = HostPlan {
        descriptors: 1,
        ..HostPlan::default()
    };
    let mut given = given(any(), scarce);
    let first = dial(1, 80);
    is_answered(&mut given, &first);
    given.forget_counters();
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 9, Script::SINK, START);
    given.pass(millis(1));
    given.quiet();
    given.counted(|counters| counters.host_exhausted += 1);
    given.up(Segment {
        flags: RST,
        seq: 1001,
        ..Segment::between(first.from, first.to)
    });
    let syn = one_segment(&mut given);
    assert_eq!((syn.flags, syn.from), (SYN, (CLIENT, 5000).into()));
    assert_eq!(syn.to, (GUEST_V4, 80).into());
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 1;
        counters.tcp_reset_by_guest += 1;
        counters.tcp_accepted += 1;
    });
}

#[test]
fn a_listener_that_starves_again_is_fed_once() {
    let scarce = HostPlan {
        descriptors: 1,
        ..HostPlan::default()
    };
    let mut given = given(any(), scarce);
    let first = dial(1, 80);
    is_answered(&mut given, &first);
    given.forget_counters();
    for client in 0..5 {
        let peer = (CLIENT, 5000 + client).into();
        let at = START + millis(u64::from(client));
        given.host.connect_in(0, peer, 100 + client, Script::SINK, at);
    }
    given.pass(millis(10));
    given.counted(|counters| counters.host_exhausted += 5);
    given.up(Segment {
        flags: RST,
        seq: 1001,
        ..Segment::between(first.from, first.to)
    });
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 1;
        counters.tcp_reset_by_guest += 1;
        counters.tcp_accepted += 1;
        counters.host_exhausted += 1;
    });
}

/// A connection in TIME_WAIT has given its descriptor back.
#[test]
fn a_starved_listener_is_fed_by_time_wait() {
    let scarce = HostPlan {
        descriptors: 1,
        ..HostPlan::default()
    };
    let mut given = given(any(), scarce);
    closing_server(&mut given);
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 9, Script::SINK, START);
    into_time_wait(&mut given, &UP, &DOWN);
    let syn = one_segment(&mut given);
    assert_eq!((syn.flags, syn.from), (SYN, (CLIENT, 5000).into()));
    assert_eq!((given.engine.flows(), given.host.open()), (2, 1));
}

#[test]
fn dns_over_tcp_goes_to_the_resolver() {
    for dns in [
        IpAddr::from(config(1500).addresses.v4.dns),
        config(1500).addresses.v6.expect("as by default").dns.into(),
    ] {
        let own: IpAddr = if dns.is_ipv4() {
            GUEST_V4.into()
        } else {
            GUEST_V6.into()
        };
        let query = syn((own, 1).into(), (dns, 53).into());
        let resolved = Config {
            resolvers: vec![(SERVER_V4, 53).into()],
            ..config(1500)
        };
        let mut with = given(resolved.clone(), HostPlan::default());
        let remote = Remote {
            answer: Answer::Now,
            script: Script::SINK,
        };
        with.host.serve(53, remote);
        is_answered(&mut with, &query);

        let mut without = given(config(1500), HostPlan::default());
        is_refused(&mut without, &query);
        without.counted(|counters| {
            counters.frames_up += 1;
            counters.frames_down += 1;
        });

        let mut elsewhere = given(resolved, HostPlan::default());
        is_refused(&mut elsewhere, &syn((own, 1).into(), (dns, 80).into()));
        elsewhere.counted(|counters| {
            counters.frames_up += 1;
            counters.frames_down += 1;
            counters.policy_refused += 1;
        });
    }
}

#[test]
fn policy_refuses_before_a_socket_exists() {
    let mut given = given(config(1500), HostPlan::default());
    let gateway = config(1500).addresses.v4.gateway;
    for to in [gateway, Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 2, 99)] {
        is_refused(&mut given, &syn((GUEST_V4, 1).into(), (to, 80).into()));
        given.counted(|counters| {
            counters.frames_up += 1;
            counters.frames_down += 1;
            counters.policy_refused += 1;
        });
    }
    assert_eq!(given.host.calls(), 0);
}

#[test]
fn every_failure_of_a_connect_and_its_icmp() {
    let cases = [
        (Failure::NetUnreachable, Some(((3, 0), (1, 0)))),
        (Failure::HostUnreachable, Some(((3, 1), (1, 3)))),
        (Failure::TimedOut, Some(((3, 1), (1, 3)))),
        (Failure::Prohibited, Some(((3, 13), (1, 1)))),
        (Failure::Refused, None),
        (Failure::Reset, None),
        (Failure::TooBig, None),
        (Failure::InUse, None),
        (Failure::Invalid, None),
        (Failure::Other(99), None),
    ];
    for (failure, icmp) in cases {
        for v6 in [false, true] {
            for answer in [Answer::Fail(failure), Answer::FailAfter(millis(5), failure)] {
                let mut given = Given::new(config(1500), PLAIN, HostPlan::default());
                let script = Script::SINK;
                given.host.serve(80, Remote { answer, script });
                let syn = match v6 {
                    true => syn((GUEST_V6, 1).into(), (SERVER_V6, 80).into()),
                    false => dial(1, 80),
                };
                given.up(syn.clone());
                given.pass(millis(6));
                let mut out = given.take();
                assert_eq!(out.pop(), Some(Packet::Tcp(refusal(&syn))), "{failure}");
                let expected = icmp.map(|(v4_code, v6_code)| if v6 { v6_code } else { v4_code });
                let told = out.pop().map(|packet| match packet {
                    Packet::Icmp(icmp) => (icmp.kind, icmp.code),
                    other => panic!("{other:?}"),
                });
                assert_eq!((told, out.len()), (expected, 0), "{failure}");
                given.counted(|counters| {
                    counters.frames_up += 1;
                    counters.frames_down += 1 + u64::from(icmp.is_some());
                    counters.tcp_opened += 1;
                    counters.tcp_connect_failed += 1;
                    counters.icmp_errors_down += u64::from(icmp.is_some());
                });
                assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
            }
        }
    }
}

/// Without IPv6 on our side nobody is there to say why.
#[test]
fn a_failure_in_a_family_without_a_gateway_is_a_reset_alone() {
    let mut no_v6 = config(1500);
    no_v6.addresses.v6 = None;
    let mut given = Given::new(no_v6, PLAIN, HostPlan::default());
    let answer = Answer::Fail(Failure::HostUnreachable);
    let script = Script::SINK;
    given.host.serve(80, Remote { answer, script });
    is_refused(&mut given, &syn((GUEST_V6, 1).into(), (SERVER_V6, 80).into()));
}

#[test]
fn without_a_connect_timeout_the_host_decides() {
    let patient = Config {
        connect_timeout: None,
        ..config(1500)
    };
    let mut given = Given::new(patient, PLAIN, HostPlan::default());
    let remote = Remote {
        answer: Answer::Never,
        script: Script::SINK,
    };
    given.host.serve(80, remote);
    given.up(dial(1, 80));
    given.pass(Duration::from_secs(126));
    given.quiet();
    given.pass(Duration::from_secs(2));
    assert_eq!(given.take().len(), 2, "ICMP and a reset");
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn only_an_exact_reset_ends_a_pending_connect() {
    let mut given = Given::new(config(1500), PLAIN, HostPlan::default());
    let remote = Remote {
        answer: Answer::After(millis(50)),
        script: Script::SINK,
    };
    given.host.serve(80, remote);
    let syn = dial(1, 80);
    given.up(syn.clone());
    let other = Segment::between(syn.from, syn.to);
    for (flags, seq) in [(ACK, 1001), (RST, 1000), (RST, 1002), (FIN.and(ACK), 1001)] {
        given.up(Segment {
            flags,
            seq,
            ..other.clone()
        });
    }
    given.quiet();
    // An event that tells of nothing.
    let flow = FlowId {
        kind: Kind::Tcp,
        worker: WorkerId(0),
        index: 0,
        generation: 0,
    };
    given.event(flow, Readiness::default());
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
    given.counted(|counters| {
        counters.frames_up += 5;
        counters.tcp_opened += 1;
    });
    given.up(Segment {
        flags: RST,
        seq: 1001,
        ..other
    });
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.tcp_reset_by_guest += 1;
    });
    given.pass(millis(100));
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn clients_with_one_key_appear_apart() {
    let mut given = given(
        published(&[
            Ipv4Addr::new(192, 0, 2, 1).into(),
            Ipv4Addr::new(192, 0, 2, 2).into(),
        ]),
        HostPlan::default(),
    );
    let peer: SocketAddr = (CLIENT, 5000).into();
    given.host.connect_in(0, peer, 7, Script::SINK, START);
    given.host.connect_in(1, peer, 8, Script::SINK, START + millis(1));
    given.pass(millis(2));
    let out = given.take();
    let [Packet::Tcp(first), Packet::Tcp(second)] = &out[..] else {
        panic!("{out:?}");
    };
    assert_eq!(first.from, peer);
    assert_eq!(second.from.ip(), IpAddr::from(config(1500).addresses.v4.gateway));
    assert!(second.from.port() >= 1024);
    given.counted(|counters| {
        counters.frames_down += 2;
        counters.tcp_accepted += 2;
    });
}

#[test]
fn a_client_that_cannot_be_shown_appears_as_the_gateway() {
    let mut given = given(any(), HostPlan::default());
    let peer = (Ipv4Addr::LOCALHOST, 5000).into();
    given.host.connect_in(0, peer, 7, Script::SINK, START);
    given.pass(millis(1));
    let syn = one_segment(&mut given);
    assert_eq!(syn.from.ip(), IpAddr::from(config(1500).addresses.v4.gateway));
    assert!(syn.from.port() >= 1024);
    assert_eq!((syn.flags, syn.to), (SYN, (GUEST_V4, 80).into()));
}

#[test]
fn a_client_of_a_family_that_the_guest_lacks_is_reset() {
    let mut no_v6 = published(&[SERVER_V6.into()]);
    no_v6.addresses.v6 = None;
    let mut given = Given::new(no_v6, PLAIN, HostPlan::default());
    given
        .host
        .connect_in(0, (SERVER_V6, 5000).into(), 7, Script::SINK, START);
    given.pass(millis(1));
    given.quiet();
    given.counted(|_| {});
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn a_client_beyond_the_limit_is_reset() {
    let limited = Config {
        max_flows: 1,
        ..any()
    };
    let mut given = given(limited, HostPlan::default());
    is_answered(&mut given, &dial(1, 80));
    given.forget_counters();
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 7, Script::SINK, START);
    given.pass(millis(1));
    given.quiet();
    given.counted(|counters| counters.flows_refused += 1);
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

#[test]
fn more_clients_than_one_turn_takes() {
    let mut given = given(any(), HostPlan::default());
    for port in 0..150 {
        let peer = (CLIENT, 5000 + port).into();
        given
            .host
            .connect_in(0, peer, 100 + port, Script::SINK, START + millis(1));
    }
    given.pass(millis(2));
    assert_eq!(given.take().len(), 150);
    given.counted(|counters| {
        counters.frames_down += 150;
        counters.tcp_accepted += 150;
    });
}

/// The host's bytes reach the guest: events for the accepted connection find it.
#[track_caller]
fn serves(given: &mut Given, peer: SocketAddr) {
    let syn = one_segment(given);
    assert_eq!((syn.flags, syn.from), (SYN, peer));
    let answer = Segment {
        flags: SYN.and(ACK),
        seq: 500,
        ack: syn.seq.wrapping_add(1),
        mss: Some(1460),
        ..Segment::between(syn.to, syn.from)
    };
    given.packet_up(&Packet::Tcp(answer));
    given.pass(millis(5));
    let bytes: usize = given
        .take()
        .iter()
        .map(|packet| match packet {
            Packet::Tcp(segment) => segment.payload.len(),
            other => panic!("{other:?}"),
        })
        .sum();
    assert_eq!((bytes, given.engine.flows()), (100, 1));
}

#[test]
fn time_wait_gives_way_to_a_client_whose_events_then_find_it() {
    let limited = Config {
        max_flows: 1,
        ..any()
    };
    let mut given = given(limited, HostPlan::default());
    closing_server(&mut given);
    into_time_wait(&mut given, &UP, &DOWN);
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 0));
    let peer = (CLIENT, 5000).into();
    given
        .host
        .connect_in(0, peer, 9, Script::source(100), START + millis(2));
    given.pass(millis(2));
    serves(&mut given, peer);
}

#[test]
fn a_client_may_reuse_its_port_while_we_are_in_time_wait() {
    let mut given = given(any(), HostPlan::default());
    let remote: SocketAddr = (SERVER_V4, PORT).into();
    closing_server(&mut given);
    let up = Segment::between((GUEST_V4, 80).into(), remote);
    let down = Segment::between(remote, (GUEST_V4, 80).into());
    into_time_wait(&mut given, &up, &down);
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 0));
    given
        .host
        .connect_in(0, remote, 9, Script::source(100), START + millis(2));
    given.pass(millis(2));
    serves(&mut given, remote);
}

#[test]
fn events_for_connections_that_are_gone_do_nothing() {
    let mut given = Given::open(Script::SINK);
    given.forget_counters();
    let ready = Readiness {
        readable: true,
        writable: true,
        end: true,
        error: true,
    };
    for (index, generation) in [(0, 1), (1, 0), (99_999, 0)] {
        let flow = FlowId {
            kind: Kind::Tcp,
            worker: WorkerId(0),
            index,
            generation,
        };
        given.event(flow, ready);
    }
    given.pass(millis(1));
    given.quiet();
    given.counted(|_| {});
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}
