//! Tests of guests that send segments that well-behaved stacks never or rarely send.

use super::*;

#[test]
fn segments_out_of_order_are_accepted_with_and_without_sack() {
    for sack in [true, false] {
        let mischief = Mischief {
            swap: 700,
            ..Mischief::default()
        };
        let plan = ScriptedPlan {
            sack,
            mischief,
            ..ScriptedPlan::default()
        };
        let write = pace(20_000, 1);
        let guest = Script {
            write,
            ..Script::source(1_000_000)
        };
        let scenario = Scenario::calm(GuestPlan::Scripted(plan), dial(guest, Script::SINK));
        let run = check(scenario.run(false));
        assert!(run.counters.tcp_out_of_order > 10, "{:?}", run.counters);
    }
}

#[test]
fn keepalive_probe_of_the_guest_enables_keepalive_on_the_host() {
    let mischief = Mischief {
        keepalive: 300,
        ..Mischief::default()
    };
    let plan = ScriptedPlan {
        mischief,
        ..ScriptedPlan::default()
    };
    let write = TransferPace {
        chunk: 100,
        every: 5 * SECOND,
    };
    let guest = Script {
        write,
        ..Script::source(500)
    };
    let scenario = Scenario::calm(GuestPlan::Scripted(plan), dial(guest, Script::SINK));
    assert_eq!(check(scenario.run(true)).keepalives, 1);
}

#[test]
fn forged_segments_are_challenged_and_ignored() {
    let mischief = Mischief {
        inexact_reset: 300,
        far_reset: 300,
        syn: 300,
        wild_ack: 300,
        beyond: 300,
        ..Mischief::default()
    };
    let plan = ScriptedPlan {
        mischief,
        ..ScriptedPlan::default()
    };
    let write = pace(1000, 3);
    let guest = Script {
        write,
        ..Script::source(20_000)
    };
    let host = Script {
        write,
        ..Script::sending(100_000)
    };
    let scenario = Scenario::calm(GuestPlan::Scripted(plan), dial(guest, host));
    let run = check(scenario.run(true));
    assert!(run.counters.tcp_challenges > 10, "{:?}", run.counters);
    assert_eq!(run.counters.tcp_reset_by_guest, 0);
}
