//! Tests of FIN and RST from either side.

use super::*;

#[test]
fn guest_half_closes() {
    let guest = Script::source(50_000);
    let write = pace(1000, 3);
    let host = Script {
        write,
        ..Script::sending(50_000)
    };
    for scenario in everywhere(&dial(guest, host)) {
        check(scenario.run(true));
    }
}

#[test]
fn host_half_closes() {
    let write = pace(1000, 3);
    let guest = Script {
        write,
        ..Script::sending(50_000)
    };
    for scenario in everywhere(&dial(guest, Script::source(50_000))) {
        check(scenario.run(true));
    }
}

#[test]
fn both_sides_close_simultaneously() {
    for bytes in [0, 1, 5000] {
        for scenario in everywhere(&dial(Script::source(bytes), Script::source(bytes))) {
            check(scenario.run(true));
        }
    }
}

#[test]
fn guest_resets() {
    let guest = Script {
        end: FinalAction::Reset(20_000),
        ..Script::source(50_000)
    };
    for scenario in everywhere(&dial(guest, Script::sending(50_000))) {
        let run = check(scenario.run(true));
        assert_eq!(run.counters.tcp_reset_by_guest, 1);
    }
}

#[test]
fn host_resets() {
    for after in [0, 1, 20_000, 50_000] {
        let host = Script {
            end: FinalAction::Reset(after),
            ..Script::source(50_000)
        };
        for scenario in everywhere(&dial(Script::sending(50_000), host)) {
            let run = check(scenario.run(true));
            assert_eq!(run.counters.tcp_reset_by_host, 1, "{:?}", run.trace);
        }
    }
}

#[test]
fn lost_fin_is_retransmitted_in_each_direction() {
    for scenario in everywhere(&dial(Script::source(1000), Script::source(1000))) {
        let ((up, lost_up), (down, lost_down)) = (
            lose(1, |segment| segment.flags.has(FIN)),
            lose(1, |segment| segment.flags.has(FIN)),
        );
        check(scenario.run_filtered(true, up, down));
        assert_eq!(
            (lost_up.load(Ordering::Relaxed), lost_down.load(Ordering::Relaxed)),
            (1, 1)
        );
    }
}

#[test]
fn time_wait_acknowledges_a_retransmitted_fin() {
    // The host closes first, so the engine is in TIME-WAIT; its acknowledgement of the guest's FIN is lost.
    for scenario in everywhere(&dial(Script::SINK, Script::source(1000))) {
        let fin = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&fin);
        let up: Filter = Box::new(move |packet| {
            if let Packet::Tcp(segment) = packet
                && segment.flags.has(FIN)
            {
                seen.store(1, Ordering::Relaxed);
            }
            FilterVerdict::Pass
        });
        let (down, lost) = lose(1, move |segment| {
            fin.load(Ordering::Relaxed) == 1 && segment.flags == ACK && segment.span() == 0
        });
        check(scenario.run_filtered(true, Some(up), down));
        assert_eq!(lost.load(Ordering::Relaxed), 1);
    }
}

/// Tests a reset of a guest whose first byte was lost: its sequence number is one beyond the last byte that the
/// window permits. Linux accepts it there as well (`tcp_sequence`).
#[test]
fn reset_at_the_edge_of_a_full_window_is_accepted() {
    let plan = ScriptedPlan::default();
    let first = plan.iss + 1;
    let guest = Script {
        write: pace(20_000, 1),
        end: FinalAction::Reset(200_000),
        ..Script::source(200_000)
    };
    let scenario = Scenario::calm(GuestPlan::Scripted(plan), dial(guest, Script::SINK));
    let (up, _) = lose(u32::MAX, move |segment| {
        segment.seq == first && !segment.payload.is_empty()
    });
    let run = check(scenario.run_filtered(true, up, None));
    assert_eq!(run.counters.tcp_reset_by_guest, 1, "{}", run.trace);
}
