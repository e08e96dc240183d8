//! Tests of links that are full, that reject frames, or that segment them.

use super::*;

/// Tests that frames which the link rejects are retransmitted, by the retransmission timer at the latest.
#[test]
fn frames_that_the_link_rejects_are_retransmitted() {
    let script = Script {
        send: 200_000,
        ..Script::echo()
    };
    for mut scenario in everywhere(&dial(script.clone(), Script::source(1_000_000))) {
        let limits = &mut scenario.world.link.limits;
        (limits.tso4, limits.tso6) = (false, false);
        scenario.world.link.rejections = 150;
        let run = check(scenario.run(false));
        assert!(run.rejected > 0, "{:?}", run.counters);
        assert_eq!(run.counters.link_refused, run.rejected);
    }
}

/// Tests that a flow that has found the link full continues as soon as the link has room, instead of after a timer.
#[test]
fn often_full_link_delays_streams_only_by_its_pauses() {
    let plan = ScriptedPlan {
        quick_ack: true,
        receive_buffer: 1460,
        scale: None,
        ..ScriptedPlan::default()
    };
    let mut scenario = Scenario::calm(
        GuestPlan::Scripted(plan),
        dial(Script::SINK, Script::source(100_000)),
    );
    let link = &mut scenario.world.link;
    (link.limits.tso4, link.refusals, link.pause) = (false, 300, Duration::from_micros(10));
    let run = check(scenario.run(false));
    assert!(run.counters.link_refused > 10, "{:?}", run.counters);
    // One minute of the virtual time is TIME-WAIT.
    assert!(run.virtual_time < 61 * SECOND, "{:?}", run.virtual_time);
}

#[test]
fn link_with_segmentation_receives_many_segments_per_frame() {
    for v6 in [false, true] {
        let connection = ScenarioConnection {
            v6,
            ..dial(Script::SINK, Script::source(1_000_000))
        };
        let scenario = Scenario::calm(GuestPlan::Scripted(ScriptedPlan::default()), connection);
        let run = check(scenario.run(false));
        assert!(run.counters.frames_down < 50, "{:?}", run.counters);
    }
}
