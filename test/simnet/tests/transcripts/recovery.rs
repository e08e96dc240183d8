//! Tests of the retransmission of data to the guest (RFC 2018, 6298, 8985).

use super::*;

#[test]
fn frames_with_data_to_the_guest_are_counted() {
    let mut given = Given::open(Script::sending(4380));
    given.pass(millis(1));
    assert_eq!(given.take().len(), 3);
    given.counted(|counters| counters.frames_down += 3);
}

#[test]
fn only_the_hole_that_sack_reports_is_retransmitted() {
    let mut given = Given::open(Script::sending(14_600));
    given.pass(millis(1));
    let sent = given.take();
    assert_eq!(sent.len(), 10);
    // SACK blocks contain absolute sequence numbers.
    let Packet::Tcp(first) = &sent[0] else {
        panic!("{sent:?}");
    };
    let at = |offset: u32| first.seq.wrapping_add(offset - 1);
    for end in [2921, 4381, 14_601] {
        given.up(Segment {
            sack: vec![(at(1461), at(end))],
            ..up(ACK, 1001, 1)
        });
    }
    let payload = Given::server_bytes(0, 1460);
    given.down(down(ACK, 1, 1001).carrying(payload));
    given.quiet();
}

#[test]
fn invalid_sack_blocks_are_ignored() {
    let mut given = Given::open(Script::sending(14_600));
    given.pass(millis(1));
    let sent = given.take();
    let Some(Packet::Tcp(first)) = sent.first() else {
        panic!("{sent:?}");
    };
    let at = |offset: u32| first.seq.wrapping_add(offset);
    given.forget_counters();
    for (begin, end) in [(5000, 5000), (9000, 5000), (1460, 14_601), (20_000, 30_000)] {
        given.up(Segment {
            sack: vec![(at(begin), at(end))],
            window: 0xfff0,
            ..up(ACK, 1001, 1)
        });
    }
    given.quiet();
    given.counted(|counters| counters.frames_up += 4);
}

/// Tests that a bare acknowledgement after a timeout has the highest sequence number. A guest that has received all
/// data would treat one with an old number as an old segment, and ignore its acknowledgement number (RFC 9293 section
/// 3.10.7.4).
#[test]
fn acknowledgement_after_a_timeout_has_the_highest_sequence_number() {
    let mut given = Given::open(Script::sending(4380));
    given.pass(millis(1));
    assert_eq!(given.take().len(), 3);
    given.pass(Duration::from_secs(5));
    given.take();
    let payload = Given::guest_bytes(0, 10);
    given.up(up(ACK, 1001, 1).carrying(payload));
    given.down(down(ACK, 4381, 1011));
}

/// Tests that an acknowledgement restarts the retransmission timer with the whole timeout.
#[test]
fn postponed_timer_retransmits_nothing() {
    let mut given = Given::open(Script::sending(2920));
    given.pass(millis(1));
    assert_eq!(given.take().len(), 2);
    given.pass(millis(5));
    given.forget_counters();
    ignores(&mut given, up(ACK, 1001, 1461));
    given.pass(millis(150));
    given.quiet();
    given.counted(|_| {});
    given.pass(millis(1500));
    assert!(!given.take().is_empty());
}

#[test]
fn timeout_restarts_after_a_tail_loss_probe() {
    let mut given = Given::open(Script::sending(2920));
    given.pass(millis(1));
    assert_eq!(given.take().len(), 2);
    given.forget_counters();
    given.pass(millis(150));
    let probe = given.take_one();
    assert_eq!(probe.payload, Given::server_bytes(1460, 1460));
    given.counted(|counters| {
        counters.frames_down += 1;
        counters.tcp_retransmits += 1;
    });
}

/// Tests the limit on retransmissions (RFC 9293 section 3.8.3).
#[test]
fn connection_ends_if_the_guest_never_acknowledges() {
    let mut given = Given::open(Script::sending(1000));
    given.pass(Duration::from_secs(100));
    assert_eq!(given.engine.flows(), 1);
    given.forget_counters();
    given.take();
    given.pass(Duration::from_secs(3000));
    let last = take_last(&mut given);
    assert_eq!((last.flags, last.ack), (RST.and(ACK), 1001));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Reset));
    assert_eq!(given.engine.counters().tcp_reset_by_host, 1);
    assert_eq!(given.engine.counters().tcp_timeouts, 12);
}
