//! Tests of the TCP timers of `docs/timers.md` that no other module tests: a state exists until shortly before its
//! timeout, and has ended shortly after it.

use pontoon_engine::address_plan::AddressPlan;

use super::*;

#[track_caller]
fn lasts(given: &mut Given, at_least: u64, at_most: u64) {
    given.pass(seconds(at_least));
    assert_eq!(given.engine.flows(), 1, "after {at_least} s");
    given.pass(seconds(at_most - at_least));
    assert_eq!(
        (given.engine.flows(), given.host.open()),
        (0, 0),
        "after {at_most} s"
    );
    assert_eq!(given.engine.next_timeout(), None);
}

fn given() -> Given {
    let mut given = Given::new(any(), PLAIN, HostPlan::default());
    given.host.serve(PORT, ConnectResult::Now, SILENT);
    given
}

#[test]
fn syn_received_lasts_25_seconds() {
    let mut given = given();
    given.up(syn());
    given.down(syn_ack());
    lasts(&mut given, 25, 26);
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Reset));
    // The guest has a connection if only its acknowledgements were lost.
    for _ in 0..6 {
        given.down(syn_ack());
    }
    given.down(down(RST.and(ACK), 1, 1001));
    given.quiet();
}

#[test]
fn syn_received_lasts_25_seconds_although_the_guest_repeats_its_syn() {
    let mut given = given();
    given.up(syn());
    let tenths = (1..300).find(|_| {
        given.pass(millis(100));
        given.take();
        let has_ended = given.engine.flows() == 0;
        if !has_ended {
            given.up(syn());
        }
        has_ended
    });
    assert!(
        tenths.is_some_and(|tenths| (250..=260).contains(&tenths)),
        "{tenths:?}"
    );
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Reset));
}

#[test]
fn syn_sent_to_a_guest_lasts_25_seconds() {
    let mut given = given();
    given.host.connect_in(0, (CLIENT, 5000).into(), 9, SILENT, START);
    given.pass(millis(1));
    lasts(&mut given, 25, 26);
    assert_eq!(given.host.outcomes()[&9], Some(ConnectionEnd::Reset));
}

/// Tests the timeout of SYN-RECEIVED while the link is full: the host's connection ends, and the slot is kept until
/// the reset was sent.
#[test]
fn syn_received_lasts_25_seconds_while_the_link_has_no_room() {
    let mut given = given();
    given.link.fill(seconds(1_000_000));
    given.up(syn());
    given.pass(seconds(26));
    assert_eq!(given.host.open(), 0);
    assert_eq!(given.engine.next_timeout(), None);
}

#[test]
fn syn_sent_lasts_25_seconds_while_the_link_has_no_room() {
    let mut given = given();
    given.link.fill(seconds(1_000_000));
    given.host.connect_in(0, (CLIENT, 5000).into(), 9, SILENT, START);
    given.pass(millis(1));
    lasts(&mut given, 24, 26);
}

#[test]
fn client_that_resets_in_syn_sent_holds_no_slot_while_the_link_has_no_room() {
    let mut given = given();
    given.link.fill(seconds(1_000_000));
    let impatient = Script {
        patience: Duration::from_secs(2),
        ..Script::SINK
    };
    given
        .host
        .connect_in(0, (CLIENT, 5000).into(), 9, impatient, START);
    given.pass(seconds(26));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn pending_connect_without_a_timeout_lasts_as_long_as_the_hosts() {
    let config = Config {
        connect_timeout: None,
        ..any()
    };
    let mut given = Given::new(config, PLAIN, HostPlan::default());
    given.host.serve(PORT, ConnectResult::Never, SILENT);
    given.up(syn());
    lasts(&mut given, 126, 128);
}

#[test]
fn established_with_data_in_flight_lasts_280_seconds_and_more() {
    let mut given = Given::open(Script { send: 100, ..SILENT });
    lasts(&mut given, 280, 500);
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Reset));
}

#[test]
fn last_ack_lasts_280_seconds_and_more() {
    let mut given = Given::open(Script::SINK);
    given.up(up(FIN.and(ACK), 1001, 1));
    lasts(&mut given, 280, 500);
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Closed));
}

#[test]
fn closing_lasts_280_seconds_and_more() {
    let mut given = Given::open(Script {
        patience: SILENT.patience,
        ..Script::source(0)
    });
    given.pass(millis(1));
    // Both FINs cross on the network.
    given.up(up(FIN.and(ACK), 1001, 1));
    lasts(&mut given, 280, 500);
}

#[test]
fn time_wait_lasts_60_seconds() {
    let mut given = Given::open(Script::source(0));
    given.pass(millis(1));
    given.up(up(FIN.and(ACK), 1001, 2));
    lasts(&mut given, 59, 61);
}

/// Opens a connection to the DNS forwarder, and returns a function that creates the guest's segments of it.
fn dns_connection() -> (Given, impl Fn(u32, &[u8]) -> Segment) {
    let dns = AddressPlan::usual(true)
        .dns()
        .next()
        .expect("the usual plan has a forwarder");
    let resolved = Config {
        resolvers: vec![(SERVER_V4, 53).into()],
        ..config(1500)
    };
    let mut given = Given::new(resolved, PLAIN, HostPlan::default());
    given.host.serve(53, ConnectResult::Now, SILENT);
    let to = SocketAddr::from((dns, 53));
    given.up(Segment { to, ..syn() });
    given.down(Segment {
        from: to,
        ..syn_ack()
    });
    let segment = move |seq: u32, payload: &[u8]| Segment {
        to,
        ..up(ACK, seq, 1).carrying(payload.to_vec())
    };
    given.up(segment(1001, &[]));
    (given, segment)
}

const QUERY: [u8; 14] = [0, 12, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn idle_dns_connection_lasts_10_seconds() {
    let (mut given, _) = dns_connection();
    lasts(&mut given, 9, 11);
    assert!(take_last(&mut given).flags.has(RST));
    assert_eq!(given.host.outcomes()[&53], Some(ConnectionEnd::Reset));
}

#[test]
fn whole_queries_keep_a_dns_connection() {
    let (mut given, segment) = dns_connection();
    for n in 0..5 {
        given.pass(seconds(9));
        given.up(segment(1001 + 14 * n, &QUERY));
    }
    given.take();
    lasts(&mut given, 9, 11);
}

#[test]
fn parts_of_a_query_do_not_keep_a_dns_connection() {
    let (mut given, segment) = dns_connection();
    for n in 0..9 {
        given.pass(seconds(1));
        given.up(segment(1001 + n, &QUERY[n as usize..][..1]));
    }
    given.take();
    lasts(&mut given, 0, 2);
}
