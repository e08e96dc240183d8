//! Tests of connections of clients to published TCP ports.

use super::*;

/// Returns an engine that has accepted a client and sent its SYN to the guest, and that SYN.
fn syn_sent() -> (Given, Segment) {
    let (guest, client) = ((GUEST_V4, 80).into(), (CLIENT, 5000).into());
    let mut given = Given::new(any(), PLAIN, HostPlan::default());
    given.host.connect_in(0, client, 7, Script::SINK, START);
    given.pass(millis(1));
    given.down(Segment {
        mss: Some(1460),
        window_scale: Some(8),
        sack_permitted: true,
        ..Segment::between(client, guest).with(SYN, 0, 0)
    });
    given.forget_counters();
    (given, Segment::between(guest, client))
}

#[test]
fn syn_ack_completes_the_handshake() {
    let (mut given, up) = syn_sent();
    given.up(up.clone().with(SYN.and(ACK), 500, 1));
    given.down(Segment::between(up.to, up.from).with(ACK, 1, 501));
    given.quiet();
    given.counted(one_each);
}

#[test]
fn unusual_segments_in_syn_sent_are_ignored_or_reset() {
    let (mut given, up) = syn_sent();
    let of = |flags, seq, ack| up.clone().with(flags, seq, ack);
    // A reset without ACK or with a wrong acknowledgement number, a SYN of the guest (simultaneous open), and a
    // segment without SYN.
    for odd in [
        of(RST, 500, 0),
        of(RST.and(ACK), 500, 2),
        of(RST.and(ACK), 500, 0),
        of(SYN, 500, 0),
        of(ACK, 500, 1),
        of(PSH, 500, 0),
    ] {
        ignores(&mut given, odd);
    }
    for flags in [ACK, SYN.and(ACK)] {
        given.up(of(flags, 500, 2));
        given.down(Segment::between(up.to, up.from).with(RST, 2, 0));
        given.quiet();
        given.counted(one_each);
    }
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
    ends(&mut given, of(RST.and(ACK), 500, 1));
    given.pass(millis(1));
    assert_eq!(given.host.outcomes()[&7], Some(ConnectionEnd::Reset));
}

#[test]
fn clients_with_equal_addresses_and_ports_appear_with_different_ports() {
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
    assert_eq!(
        second.from.ip(),
        IpAddr::from(config(1500).plan.v4.unwrap().gateway)
    );
    assert!(second.from.port() >= 1024);
    given.counted(|counters| {
        counters.frames_down += 2;
        counters.tcp_accepted += 2;
    });
}

#[test]
fn client_with_a_local_address_appears_as_the_gateway() {
    let mut given = given(any(), HostPlan::default());
    let peer = (Ipv4Addr::LOCALHOST, 5000).into();
    given.host.connect_in(0, peer, 7, Script::SINK, START);
    given.pass(millis(1));
    let syn = given.take_one();
    assert_eq!(syn.from.ip(), IpAddr::from(config(1500).plan.v4.unwrap().gateway));
    assert!(syn.from.port() >= 1024);
    assert_eq!((syn.flags, syn.to), (SYN, (GUEST_V4, 80).into()));
}

/// Returns a configuration with one published port that leads to `target`.
fn leads_to(target: Ipv4Addr) -> Config {
    let mut config = any();
    config.published[0].target = Some(target.into());
    config
}

#[test]
fn clients_are_sent_to_the_target_of_a_published_port() {
    let target = Ipv4Addr::new(10, 88, 0, 5);
    let mut given = given(leads_to(target), HostPlan::default());
    let peer: SocketAddr = (CLIENT, 5000).into();
    given.host.connect_in(0, peer, 7, Script::source(100), START);
    given.pass(millis(1));
    let syn = given.take_one();
    assert_eq!((syn.flags, syn.from, syn.to), (SYN, peer, (target, 80).into()));
    let answer = Segment {
        mss: Some(1460),
        ..Segment::between(syn.to, syn.from).with(SYN.and(ACK), 500, syn.seq.wrapping_add(1))
    };
    given.packet_up(&Packet::Tcp(answer));
    given.pass(millis(5));
    assert_eq!(take_bytes(&mut given), 100);
}

#[test]
fn client_with_the_address_of_the_target_appears_as_the_gateway() {
    let mut given = given(leads_to(CLIENT), HostPlan::default());
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 7, Script::SINK, START);
    given.pass(millis(1));
    let syn = given.take_one();
    assert_eq!(syn.from.ip(), IpAddr::from(config(1500).plan.v4.unwrap().gateway));
    assert_eq!(syn.to, (CLIENT, 80).into());
}

#[test]
fn client_of_a_family_without_a_guest_address_is_reset() {
    let mut no_v6 = published(&[SERVER_V6.into()]);
    no_v6.plan.v6 = None;
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
fn waiting_clients_are_accepted_in_several_turns() {
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

#[test]
fn all_waiting_clients_of_a_removed_port_are_accepted() {
    let mut given = given(any(), HostPlan::default());
    let at = START + millis(1);
    for port in 0..150 {
        let peer = (CLIENT, 5000 + port).into();
        given.host.connect_in(0, peer, 100 + port, Script::SINK, at);
    }
    given.host.tick(at);
    given.engine.unpublish(0, &mut given.link, &mut given.host, at);
    // The socket of the removed port is closed when the call has returned.
    assert_eq!(given.engine.counters().tcp_accepted, 150);
}

#[test]
fn client_reuses_its_port_in_time_wait() {
    let mut given = given(any(), HostPlan::default());
    let remote: SocketAddr = (SERVER_V4, PORT).into();
    closing_server(&mut given);
    into_time_wait(&mut given, (GUEST_V4, 80).into(), remote);
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 0));
    given
        .host
        .connect_in(0, remote, 9, Script::source(100), START + millis(2));
    given.pass(millis(2));
    serves(&mut given, remote);
}
