//! Tests of segments that an attacker may have forged (RFC 5961).

use super::*;

#[test]
fn reset_is_challenged_unless_its_sequence_number_is_exact() {
    let mut given = Given::open(Script::SINK);
    challenges(&mut given, up(RST, 1002, 0));
    ignores(&mut given, up(RST, 1001 + 0x4000_0000, 0));
    assert_eq!(given.engine.flows(), 1);
    ends(&mut given, up(RST, 1001, 0));
    given.pass(millis(10));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    assert_eq!(given.host.outcomes()[&PORT], Some(ConnectionEnd::Reset));
}

#[test]
fn syn_in_established_is_challenged() {
    for seq in [1001, 1002, 5] {
        let mut given = Given::open(Script::SINK);
        let syn = Segment { seq, ..syn() };
        challenges(&mut given, syn);
        assert_eq!(given.engine.flows(), 1);
    }
}

#[test]
fn acknowledgement_of_unsent_data_is_challenged() {
    let mut given = Given::open(Script::SINK);
    let data = up(ACK, 1001, 2).carrying(Given::guest_bytes(0, 10));
    challenges(&mut given, data);
}

#[test]
fn acknowledgement_older_than_the_window_is_challenged() {
    let mut given = Given::open(Script::SINK);
    ignores(&mut given, up(ACK, 1001, 0));
    ignores(&mut given, up(ACK, 1001, 1_u32.wrapping_sub(0xffff)));
    challenges(&mut given, up(ACK, 1001, 0_u32.wrapping_sub(0xffff)));
}

/// Tests the limit on challenge acknowledgements (RFC 5961 section 7).
#[test]
fn challenges_are_limited_to_two_a_second() {
    let mut given = Given::open(Script::SINK);
    let wild = [
        up(RST, 1002, 0),
        up(SYN, 1001, 0),
        up(ACK, 900_000, 1),
        up(ACK, 1001, 2).carrying(Given::guest_bytes(0, 10)),
    ];
    for first in &wild {
        challenges(&mut given, first.clone());
        for another in &wild {
            withholds(&mut given, another.clone());
        }
        given.pass(millis(499));
        withholds(&mut given, first.clone());
        given.pass(millis(1));
    }
}

#[test]
fn limit_on_challenges_is_per_connection() {
    let mut given = Given::open(Script::SINK);
    challenges(&mut given, up(RST, 1002, 0));
    given.host.serve(PORT + 1, ConnectResult::Now, Script::SINK);
    let (guest, server) = ((GUEST_V4, 40_001).into(), (SERVER_V4, PORT + 1).into());
    let up = |flags, seq, ack| Segment::between(guest, server).with(flags, seq, ack);
    let down = |flags, seq, ack| Segment::between(server, guest).with(flags, seq, ack);
    given.up(syn_between(guest, server));
    given.down(Segment {
        mss: Some(1460),
        ..down(SYN.and(ACK), 0, 1001)
    });
    given.up(up(ACK, 1001, 1));
    given.forget_counters();
    given.up(up(RST, 1002, 0));
    given.down(down(ACK, 1, 1001));
    given.quiet();
    given.counted(|counters| {
        one_each(counters);
        counters.tcp_challenges += 1;
    });
}

/// Tests that data outside the window is acknowledged without a limit: it may be a retransmission whose
/// acknowledgement was lost (RFC 9293 section 3.10.7.4).
#[test]
fn data_outside_the_window_is_always_acknowledged() {
    let mut given = Given::open(Script::SINK);
    let beyond = up(ACK, 900_000, 1).carrying(vec![0xee; 10]);
    for _ in 0..3 {
        challenges(&mut given, beyond.clone());
    }
    let data = up(FIN.and(ACK), 1001, 1).carrying(Given::guest_bytes(0, 10));
    given.up(data.clone());
    given.pass(millis(1));
    given.take();
    given.forget_counters();
    for _ in 0..3 {
        given.up(data.clone());
        given.down(down(ACK, 2, 1012));
        given.quiet();
        given.counted(|counters| {
            one_each(counters);
            counters.tcp_challenges += 1;
        });
    }
}
