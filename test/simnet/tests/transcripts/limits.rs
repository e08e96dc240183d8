//! Tests of the limits on flows, on connections in TIME-WAIT and on clients of published ports, and of exhausted
//! descriptors.

use super::*;

fn at_most(max_flows: u32, config: Config) -> Config {
    Config { max_flows, ..config }
}

fn descriptors(descriptors: usize) -> HostPlan {
    HostPlan {
        descriptors,
        ..HostPlan::default()
    }
}

#[test]
fn flows_beyond_the_limit_are_refused() {
    let mut given = given(at_most(2, config(1500)), HostPlan::default());
    is_answered(&mut given, &dial(1, 80));
    is_answered(&mut given, &dial(2, 81));
    given.forget_counters();
    is_refused(&mut given, &dial(3, 82));
    given.counted(|counters| {
        one_each(counters);
        counters.flows_refused += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (2, 2));
}

#[test]
fn oldest_time_wait_is_evicted_for_a_new_flow() {
    let mut given = given(at_most(1, config(1500)), HostPlan::default());
    closing_server(&mut given);
    into_time_wait(&mut given, GUEST, SERVER);
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 0));
    given.forget_counters();
    is_answered(&mut given, &dial(2, 81));
    given.counted(|counters| {
        one_each(counters);
        counters.tcp_opened += 1;
    });
    assert_eq!(given.engine.flows(), 1);
}

/// Tests that a new connection evicts the idlest UDP or echo flow if all slots are occupied.
#[test]
fn idlest_datagram_flow_is_evicted_for_a_connection() {
    let mut given = given(at_most(3, config(1500)), HostPlan::default());
    is_answered(&mut given, &dial(1, 80));
    for port in [5000, 5001] {
        given.packet_up(&Packet::Udp(Datagram {
            from: (GUEST.ip(), port).into(),
            to: (SERVER_V4, 7).into(),
            payload: vec![1; 10],
        }));
        given.pass(millis(1));
    }
    given.take();
    given.forget_counters();
    for (nth, port) in [(2, 81), (3, 82)] {
        is_answered(&mut given, &dial(nth, port));
        assert_eq!((given.engine.flows(), given.host.open()), (3, 3));
    }
    is_refused(&mut given, &dial(4, 83));
    given.counted(|counters| {
        for _ in 0..3 {
            one_each(counters);
        }
        counters.tcp_opened += 2;
        counters.udp_evicted += 2;
        counters.flows_refused += 1;
    });
}

/// Tests the eviction of an echo id for a UDP endpoint opened at the same time: the new flow must not be evicted.
#[test]
fn echo_id_is_evicted_for_an_endpoint_of_the_same_time() {
    let mut given = given(at_most(1, config(1500)), HostPlan::default());
    given.packet_up(&Packet::Icmp(IcmpMessage {
        from: GUEST.ip(),
        to: SERVER_V4.into(),
        kind: 8,
        code: 0,
        rest: vec![0, 1, 0, 1],
    }));
    given.packet_up(&Packet::Udp(Datagram {
        from: (GUEST.ip(), 5000).into(),
        to: (SERVER_V4, 7).into(),
        payload: vec![1; 10],
    }));
    let counters = given.engine.counters();
    assert_eq!((counters.ping_evicted, counters.udp_evicted), (1, 0));
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

/// Tests that a client of a published port evicts the idlest datagram flow if all slots are occupied.
#[test]
fn idlest_datagram_flow_is_evicted_for_a_client() {
    let mut given = given(
        Config {
            max_flows: 1,
            ..any()
        },
        HostPlan::default(),
    );
    given.packet_up(&Packet::Udp(Datagram {
        from: (GUEST.ip(), 5000).into(),
        to: (SERVER_V4, 7).into(),
        payload: vec![1; 10],
    }));
    given.take();
    given.forget_counters();
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 9, Script::SINK, START);
    given.pass(millis(1));
    let counters = given.engine.counters();
    assert_eq!(
        (
            counters.tcp_accepted,
            counters.udp_evicted,
            counters.flows_refused
        ),
        (1, 1, 0)
    );
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

/// Tests that the entry of a connection that has left TIME-WAIT early does not evict a later connection in the same
/// slot, even after 65,536 connections in between.
#[test]
fn established_connections_are_not_evicted() {
    let mut given = given(at_most(2, config(1500)), HostPlan::default());
    for port in [80, 81] {
        given.host.serve(port, ConnectResult::Now, Script::source(0));
        into_time_wait(&mut given, GUEST, (SERVER_V4, port).into());
    }
    let reset = |given: &mut Given, port, seq| {
        given.up(Segment::between(GUEST, (SERVER_V4, port).into()).with(RST, seq, 0));
    };
    reset(&mut given, 81, 1002);
    given.host.serve(82, ConnectResult::Never, Script::SINK);
    for _ in 0..u16::MAX {
        given.up(syn_between(GUEST, (SERVER_V4, 82).into()));
        reset(&mut given, 82, 1001);
    }
    let third = (SERVER_V4, 83).into();
    given.up(syn_between(GUEST, third));
    given.down(Segment {
        mss: Some(1460),
        ..Segment::between(third, GUEST).with(SYN.and(ACK), 0, 1001)
    });
    given.up(Segment::between(GUEST, third).with(ACK, 1001, 1));
    given.pass(Duration::from_secs(60));
    is_answered(&mut given, &dial(4, 84));
    is_refused(&mut given, &dial(5, 85));
    assert_eq!(given.engine.flows(), 2);
}

#[test]
fn new_flows_are_limited_per_second() {
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
        one_each(counters);
        counters.flows_refused += 1;
    });
    given.pass(millis(1000));
    given.take();
    is_answered(&mut given, &dial(4, 83));
}

#[test]
fn connect_without_a_descriptor_is_refused() {
    let mut given = given(config(1500), descriptors(0));
    is_refused(&mut given, &dial(1, 80));
    given.counted(|counters| {
        one_each(counters);
        counters.tcp_opened += 1;
        counters.tcp_connect_failed += 1;
        counters.host_exhausted += 1;
    });
    assert_eq!(given.engine.flows(), 0);
}

#[test]
fn listener_without_descriptor_accepts_when_a_connection_ends() {
    let mut given = given(any(), descriptors(1));
    let first = dial(1, 80);
    is_answered(&mut given, &first);
    given.forget_counters();
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 9, Script::SINK, START);
    given.pass(millis(1));
    given.quiet();
    given.counted(|counters| counters.host_exhausted += 1);
    given.up(Segment::between(first.from, first.to).with(RST, 1001, 0));
    let syn = given.take_one();
    assert_eq!((syn.flags, syn.from), (SYN, (CLIENT, 5000).into()));
    assert_eq!(syn.to, (GUEST_V4, 80).into());
    given.counted(|counters| {
        one_each(counters);
        counters.tcp_reset_by_guest += 1;
        counters.tcp_accepted += 1;
    });
}

/// Tests a listener without a descriptor whose host reports it again: another process may have held the descriptors.
#[test]
fn listener_without_descriptor_accepts_when_the_host_reports_it_again() {
    let mut given = given(any(), descriptors(0));
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 9, Script::SINK, START);
    given.pass(millis(1));
    given.quiet();
    given.host.set_descriptors(1);
    given.pass(millis(200));
    let syn = given.take_one();
    assert_eq!((syn.flags, syn.from), (SYN, (CLIENT, 5000).into()));
}

#[test]
fn listener_that_lacks_a_descriptor_again_accepts_one_client() {
    let mut given = given(any(), descriptors(1));
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
    given.up(Segment::between(first.from, first.to).with(RST, 1001, 0));
    given.counted(|counters| {
        one_each(counters);
        counters.tcp_reset_by_guest += 1;
        counters.tcp_accepted += 1;
        counters.host_exhausted += 1;
    });
}

/// Tests that the descriptor of a connection that enters TIME-WAIT is available to a listener.
#[test]
fn listener_without_descriptor_accepts_after_time_wait_begins() {
    let mut given = given(any(), descriptors(1));
    closing_server(&mut given);
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 9, Script::SINK, START);
    into_time_wait(&mut given, GUEST, SERVER);
    let syn = given.take_one();
    assert_eq!((syn.flags, syn.from), (SYN, (CLIENT, 5000).into()));
    assert_eq!((given.engine.flows(), given.host.open()), (2, 1));
}

/// Tests the limit on connections in TIME-WAIT if a guest closes many within a minute.
#[test]
fn connections_in_time_wait_are_limited() {
    let mut given = given(any(), HostPlan::default());
    for port in 1..=9000 {
        given.host.serve(port, ConnectResult::Now, Script::source(0));
        into_time_wait(&mut given, GUEST, (SERVER.ip(), port).into());
    }
    assert_eq!((given.engine.flows(), given.host.open()), (8192, 0));
}

#[test]
fn client_beyond_the_limit_is_reset() {
    let mut given = given(at_most(1, any()), HostPlan::default());
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
fn client_that_evicts_time_wait_receives_its_events() {
    let mut given = given(at_most(1, any()), HostPlan::default());
    closing_server(&mut given);
    into_time_wait(&mut given, GUEST, SERVER);
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 0));
    let peer = (CLIENT, 5000).into();
    given
        .host
        .connect_in(0, peer, 9, Script::source(100), START + millis(2));
    given.pass(millis(2));
    serves(&mut given, peer);
}

/// Tests that clients of one published port occupy at most three fourths of `--max-flows`.
#[test]
fn clients_of_one_port_are_limited_to_three_fourths_of_max_flows() {
    let mut given = given(at_most(4, any()), HostPlan::default());
    for port in 0..4 {
        given
            .host
            .connect_in(0, (CLIENT, 5000 + port).into(), 90 + port, SILENT, START);
    }
    given.pass(millis(1));
    assert_eq!(given.take().len(), 3);
    given.counted(|counters| {
        counters.frames_down += 3;
        counters.tcp_accepted += 3;
        counters.tcp_share_refused += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (3, 3));
    is_answered(&mut given, &dial(1, 80));
}

/// Tests that a client beyond the share of its port evicts a half-closed connection of the same port, although one of
/// another port was idle for longer.
#[test]
fn half_closed_client_is_evicted_for_another_of_its_port() {
    let mut given = given(at_most(4, any()), HostPlan::default());
    given.host.serve(PORT, ConnectResult::Now, SILENT);
    given.up(syn());
    given.down(syn_ack());
    given.up(up(FIN.and(ACK), 1001, 1));
    given.take();
    for port in 0..3 {
        let client = (CLIENT, 5000 + port).into();
        given.host.connect_in(0, client, 90 + port, SILENT, START);
        given.pass(millis(1));
        let syn = given.take_one();
        let of = |flags, seq| Segment::between(syn.to, syn.from).with(flags, seq, syn.seq.wrapping_add(1));
        given.packet_up(&Packet::Tcp(of(SYN.and(ACK), 500)));
        if port == 0 {
            given.packet_up(&Packet::Tcp(of(FIN.and(ACK), 501)));
        }
        given.take();
    }
    given.pass(seconds(6));
    given.forget_counters();
    let at = START + seconds(7);
    given.host.connect_in(0, (CLIENT, 6000).into(), 99, SILENT, at);
    given.pass(seconds(1));
    let [Packet::Tcp(first), ..] = &given.take()[..] else {
        panic!("a reset");
    };
    assert!(first.flags.has(RST) && first.from.port() == 5000, "{first:?}");
    assert_eq!(given.engine.counters().tcp_share_refused, 0);
    assert_eq!(given.engine.flows(), 4);
}

/// Returns an engine with two published ports and a limit of `max_flows` flows.
fn with_two_ports(max_flows: u32) -> Given {
    let config = published(&[Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 77).into()]);
    let mut given = given(at_most(max_flows, config), HostPlan::default());
    given.host.serve(PORT, ConnectResult::Now, SILENT);
    given
}

#[test]
fn clients_of_all_ports_together_have_seven_eighths_of_the_flows() {
    let mut given = with_two_ports(8);
    for port in 0..8 {
        let client = (CLIENT, 5000 + port).into();
        given
            .host
            .connect_in(u32::from(port) % 2, client, 90 + port, SILENT, START);
    }
    given.pass(millis(1));
    assert_eq!(given.take().len(), 7);
    given.counted(|counters| {
        counters.frames_down += 7;
        counters.tcp_accepted += 7;
        counters.tcp_share_refused += 1;
    });
    is_answered(&mut given, &dial(1, PORT));
}

/// Tests that a client evicts a connection in TIME-WAIT of another port if the clients of all ports have reached
/// their common limit.
#[test]
fn time_wait_of_one_port_gives_way_to_a_client_of_another() {
    let mut given = with_two_ports(8);
    for nth in 0..6 {
        client_into_time_wait(&mut given, nth);
    }
    for port in 0..2 {
        let client = (CLIENT, 6000 + port).into();
        given.host.connect_in(1, client, 90 + port, SILENT, START);
        given.pass(millis(2));
    }
    let counters = given.engine.counters();
    assert_eq!((counters.tcp_accepted, counters.tcp_share_refused), (8, 0));
}

/// Makes a client of a published port connect, and the guest half-close the connection at once.
#[track_caller]
fn half_closed_client(given: &mut Given, listener: u32, port: u16) {
    let at = START + seconds(1);
    given
        .host
        .connect_in(listener, (CLIENT, port).into(), port, SILENT, at);
    given.pass(millis(1));
    let syn = given.take_one();
    let of = |flags, seq| Segment::between(syn.to, syn.from).with(flags, seq, syn.seq.wrapping_add(1));
    given.packet_up(&Packet::Tcp(of(SYN.and(ACK), 500)));
    given.packet_up(&Packet::Tcp(of(FIN.and(ACK), 501)));
    given.take();
}

/// Tests that a half-closed connection of the same port is found behind 64 connections of another port that were idle
/// for longer.
#[test]
fn a_half_closed_client_gives_way_behind_many_of_another_port() {
    for others in [63, 64] {
        let mut given = with_two_ports(520);
        given.pass(seconds(1));
        for port in 0..others {
            half_closed_client(&mut given, 0, 2000 + port);
        }
        for port in 0..390 {
            half_closed_client(&mut given, 1, 3000 + port);
        }
        given.pass(seconds(6));
        given.take();
        assert_eq!(given.engine.flows(), 390 + usize::from(others));
        given.forget_counters();
        given
            .host
            .connect_in(1, (CLIENT, 9000).into(), 9000, SILENT, START + seconds(1));
        given.pass(millis(1));
        let [Packet::Tcp(first), ..] = &given.take()[..] else {
            panic!("a reset");
        };
        assert!(first.flags.has(RST) && first.from.port() == 3000, "{first:?}");
        let counters = given.engine.counters();
        assert_eq!(
            (counters.tcp_share_refused, counters.tcp_half_closed_evicted),
            (0, 1),
            "{others} of another port"
        );
    }
}

/// Tests that a client beyond the share of its port evicts no connection in TIME-WAIT that belongs to others.
#[test]
fn client_beyond_its_share_evicts_no_time_wait_of_others() {
    let mut given = given(at_most(8, any()), HostPlan::default());
    closing_server(&mut given);
    into_time_wait(&mut given, GUEST, SERVER);
    let begin = START + millis(10);
    for port in 0..8 {
        let client = (CLIENT, 5000 + port).into();
        given.host.connect_in(0, client, 90 + port, SILENT, begin);
    }
    given.pass(millis(20));
    assert_eq!(given.take().len(), 6);
    assert_eq!(given.engine.counters().tcp_share_refused, 2);
    assert_eq!(given.engine.flows(), 7);
    // The guest has not received the last acknowledgement, and repeats its FIN.
    given.up(up(FIN.and(ACK), 1001, 2));
    given.down(down(ACK, 2, 1002));
}

/// Tests that connections which end are removed from the list of flows that wait for the link, even if the guest
/// opens and resets connections without reading frames.
#[test]
fn ended_connections_are_removed_from_the_parked_list() {
    let mut given = given(config(1500), HostPlan::default());
    given.link.fill(seconds(3600));
    is_silent_about(&mut given, &dial(9, 80));
    for nth in 0..1000 {
        let syn = dial(5000, 1000 + nth);
        given.host.serve(1000 + nth, ConnectResult::Now, Script::SINK);
        is_silent_about(&mut given, &syn);
        given.up(Segment::between(syn.from, syn.to).with(RST, syn.seq + 1, 0));
    }
    assert_eq!(given.engine.flows(), 1);
    assert!(given.engine.parked() < 100, "{}", given.engine.parked());
    given.pass(seconds(3600));
    assert_eq!(given.take_one().to.port(), 9);
    assert_eq!(given.engine.parked(), 0);
}

#[track_caller]
fn is_silent_about(given: &mut Given, syn: &Segment) {
    given.up(syn.clone());
    given.quiet();
}

/// Tests that a client evicts a connection in TIME-WAIT of its own port, although more connections of the guest in
/// TIME-WAIT are older than are examined for one client.
#[test]
fn client_evicts_time_wait_of_its_ports_share() {
    let mut given = given(at_most(272, any()), HostPlan::default());
    for nth in 0..65 {
        given
            .host
            .serve(1000 + nth, ConnectResult::Now, Script::source(0));
        into_time_wait(&mut given, GUEST, (SERVER_V4, 1000 + nth).into());
    }
    for nth in 0..204 {
        client_into_time_wait(&mut given, nth);
    }
    assert_eq!(given.engine.flows(), 269);
    for nth in 204..214 {
        let client = (CLIENT, 5000 + nth).into();
        given.host.connect_in(0, client, 5000 + nth, SILENT, START);
        given.pass(millis(2));
    }
    let counters = given.engine.counters();
    // Each client continues the examination where the previous one has ended.
    assert!(counters.tcp_share_refused <= 2, "{counters:?}");
    assert_eq!(counters.tcp_accepted + counters.tcp_share_refused, 214);
}

/// Makes a client of the published port connect, and client and guest close, so that the connection enters TIME-WAIT.
#[track_caller]
fn client_into_time_wait(given: &mut Given, nth: u16) {
    let client = (CLIENT, 5000 + nth).into();
    given
        .host
        .connect_in(0, client, 5000 + nth, Script::source(0), START);
    given.pass(millis(2));
    let syn = given.take_one();
    let of = |flags, seq, ack| Segment::between(syn.to, syn.from).with(flags, seq, syn.seq.wrapping_add(ack));
    given.packet_up(&Packet::Tcp(of(SYN.and(ACK), 500, 1)));
    given.pass(millis(1));
    given.packet_up(&Packet::Tcp(of(FIN.and(ACK), 501, 2)));
    given.take();
}

/// Tests that a flow refused by `--max-flow-rate` evicts neither a connection in TIME-WAIT nor a datagram flow.
#[test]
fn flow_above_the_rate_evicts_nothing() {
    let datagram = |port: u16| {
        Packet::Udp(Datagram {
            from: (GUEST.ip(), port).into(),
            to: (SERVER_V4, 7).into(),
            payload: vec![1; 10],
        })
    };
    let echo = Packet::Icmp(IcmpMessage {
        from: GUEST.ip(),
        to: SERVER_V4.into(),
        kind: 8,
        code: 0,
        rest: vec![0, 1, 0, 1],
    });
    let refused = [
        Some(Packet::Tcp(dial(3, 82))),
        Some(datagram(5001)),
        Some(echo),
        None,
    ];
    for (held_in_time_wait, refused) in [true, false]
        .into_iter()
        .flat_map(|held| refused.clone().map(|refused| (held, refused)))
    {
        let limited = Config {
            max_flow_rate: Some(1),
            ..at_most(1, any())
        };
        let mut given = given(limited, HostPlan::default());
        closing_server(&mut given);
        match held_in_time_wait {
            true => into_time_wait(&mut given, GUEST, SERVER),
            false => given.packet_up(&datagram(5000)),
        }
        given.pass(millis(1));
        given.take();
        let before = (given.engine.flows(), given.host.open());
        assert_eq!(before.0, 1);
        given.forget_counters();
        match &refused {
            Some(packet) => given.packet_up(packet),
            None => {
                let at = START + millis(2);
                given
                    .host
                    .connect_in(0, (CLIENT, 5000).into(), 9, Script::SINK, at);
            }
        }
        given.pass(millis(5));
        assert_eq!(given.engine.counters().flows_refused, 1, "{refused:?}");
        assert_eq!((given.engine.flows(), given.host.open()), before, "{refused:?}");
    }
}
