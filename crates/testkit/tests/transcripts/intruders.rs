//! Segments that somebody else may have made up: RFC 5961.

use super::*;

#[test]
fn an_inexact_reset_is_challenged_and_an_exact_one_obeyed() {
    let mut given = Given::open(Script::SINK);
    challenges(&mut given, up(RST, 1002, 0));
    ignores(&mut given, up(RST, 1001 + 0x4000_0000, 0));
    assert_eq!(given.engine.flows(), 1);
    ends(&mut given, up(RST, 1001, 0));
    given.pass(millis(10));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    assert_eq!(given.host.outcomes()[&PORT], Some(Outcome::Reset));
}

#[test]
fn a_syn_on_an_open_connection_is_challenged() {
    for seq in [1001, 1002, 5] {
        let mut given = Given::open(Script::SINK);
        let syn = Segment { seq, ..syn() };
        challenges(&mut given, syn);
        assert_eq!(given.engine.flows(), 1);
    }
}

#[test]
fn an_acknowledgement_of_the_future_is_challenged() {
    let mut given = Given::open(Script::SINK);
    let data = up(ACK, 1001, 2).carrying(Given::guest_bytes(0, 10));
    challenges(&mut given, data);
}

#[test]
fn acknowledgements_from_the_past_are_challenged() {
    let mut given = Given::open(Script::SINK);
    ignores(&mut given, up(ACK, 1001, 0));
    ignores(&mut given, up(ACK, 1001, 1_u32.wrapping_sub(0xffff)));
    challenges(&mut given, up(ACK, 1001, 0_u32.wrapping_sub(0xffff)));
}
