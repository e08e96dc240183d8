//! Tests of the time at which the guest's data is acknowledged (RFC 9293 section 3.8.6.3).

use super::*;

/// Returns an established connection of an engine whose worker polls instead of sleeping.
fn awake(script: Script) -> Given {
    let mut given = Given::open(script);
    given.awake = true;
    given
}

fn data(at: u64, len: usize) -> Segment {
    up(ACK, 1001 + at as u32, 1).carrying(Given::guest_bytes(at, len))
}

fn acknowledged(bytes: u32) -> Segment {
    down(ACK, 1, 1001 + bytes)
}

#[test]
fn response_carries_the_acknowledgement() {
    let mut given = awake(Script::echo());
    given.up(data(0, 100));
    given.pass(Duration::from_micros(20));
    given.down(acknowledged(100).carrying(Given::server_bytes(0, 100)));
    given.pass(millis(1));
    given.quiet();
}

#[test]
fn acknowledgement_is_delayed_for_50_us() {
    let mut given = awake(Script::SINK);
    given.up(data(0, 100));
    given.pass(Duration::from_nanos(49_999));
    given.quiet();
    given.pass(Duration::from_nanos(1));
    given.down(acknowledged(100));
    // The acknowledgement of the next segment is delayed as well.
    given.up(data(100, 1));
    given.quiet();
    given.pass(Duration::from_micros(50));
    given.down(acknowledged(101));
    given.pass(millis(1));
    given.quiet();
}

#[test]
fn acknowledgement_is_sent_before_the_worker_sleeps() {
    let mut given = awake(Script::SINK);
    given.up(data(0, 100));
    given.quiet();
    given.awake = false;
    given.pass(Duration::ZERO);
    given.down(acknowledged(100));
    given.quiet();
}

#[test]
fn second_segment_is_acknowledged_at_once() {
    let mut given = awake(Script::SINK);
    given.up(data(0, 100));
    given.quiet();
    given.up(data(100, 100));
    given.down(acknowledged(200));
    given.pass(millis(1));
    given.quiet();
}

#[test]
fn large_segment_is_acknowledged_at_once() {
    let mut given = awake(Script::SINK);
    given.up(data(0, 5000));
    given.down(acknowledged(5000));
    // A retransmitted segment indicates that the guest has not received its acknowledgement.
    given.up(data(0, 100));
    given.down(acknowledged(5000));
    // A segment after a gap.
    given.up(data(5100, 100));
    given.down(Segment {
        sack: vec![(6101, 6201)],
        ..acknowledged(5000)
    });
    given.quiet();
}
