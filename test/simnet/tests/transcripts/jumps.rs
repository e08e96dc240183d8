//! Tests of a clock that jumps, as after a machine was suspended: all timers expire at once, and no established
//! connection ends.

use super::*;

/// Length of the jump: longer than any timer of the engine, shorter than the applications' timeouts.
const NAP: Duration = Duration::from_secs(5 * 60);

#[test]
fn idle_connection_survives_a_clock_jump() {
    let mut given = Given::open(Script::SINK);
    given.jump(NAP);
    given.quiet();
    given.up(up(ACK, 1001, 1).carrying(Given::guest_bytes(0, 100)));
    given.down(down(ACK, 1, 1101));
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

#[test]
fn data_in_flight_is_retransmitted_once_after_a_clock_jump() {
    let mut given = Given::open(Script::sending(100));
    given.pass(millis(1));
    let data = down(ACK, 1, 1001).carrying(Given::server_bytes(0, 100));
    given.down(data.clone());
    given.quiet();
    given.jump(NAP);
    given.down(data);
    given.quiet();
    given.up(up(ACK, 1001, 101));
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}
