//! Tests of readers that are slow or stop reading, and of the memory (pool) for unread data.

use super::*;

#[test]
fn guest_that_stops_reading_for_a_minute_receives_all_data() {
    let guest = resting_a_minute(10_000);
    for scenario in everywhere(&dial(guest, Script::source(3_000_000))) {
        let run = check(scenario.run(false));
        assert!(run.virtual_time > 60 * SECOND);
    }
}

#[test]
fn host_that_stops_reading_for_a_minute_receives_all_data() {
    let host = resting_a_minute(10_000);
    for mut scenario in everywhere(&dial(Script::source(3_000_000), host)) {
        scenario.world.host.send_buffer = 50_000;
        let run = check(scenario.run(false));
        assert!(run.virtual_time > 60 * SECOND);
        assert!(run.counters.tcp_spilled_bytes > 0);
    }
}

#[test]
fn window_closes_and_opens() {
    let read = pace(700, 2);
    let guest = Script { read, ..Script::SINK };
    for v6 in [false, true] {
        for plan in [
            GuestPlan::Smol(2000, 2000),
            GuestPlan::Scripted(ScriptedPlan {
                receive_buffer: 2000,
                scale: None,
                ..ScriptedPlan::default()
            }),
        ] {
            let connection = ScenarioConnection {
                v6,
                ..dial(guest.clone(), Script::source(100_000))
            };
            check(Scenario::calm(plan, connection).run(false));
        }
    }
}

#[test]
fn long_upload_grows_the_window_to_its_limit() {
    let plan = ScriptedPlan {
        send_buffer: 8 << 20,
        ..ScriptedPlan::default()
    };
    let mut scenario = Scenario::calm(
        GuestPlan::Scripted(plan),
        dial(Script::source(16 << 20), Script::SINK),
    );
    scenario.world.host.send_buffer = 8 << 20;
    check(scenario.run(false));
}

#[test]
fn peek_without_offset_works_on_old_kernels() {
    for mut scenario in everywhere(&dial(Script::SINK, Script::source(3_000_000))) {
        scenario.world.host.peeks_at_offset = false;
        scenario.world.host.receive_buffer = 4 << 20;
        check(scenario.run(false));
    }
}

#[test]
fn exhausted_pool_loses_no_data() {
    let host = resting_a_minute(0);
    let plan = ScriptedPlan {
        quick_ack: true,
        ..ScriptedPlan::default()
    };
    let first = dial(Script::source(100_000), host);
    let mut scenario = Scenario::calm(GuestPlan::Scripted(plan), first.clone());
    scenario.world.host.send_buffer = 4000;
    scenario.connections = (0..700)
        .map(|index| ScenarioConnection {
            port: 1000 + index,
            ..first.clone()
        })
        .collect();
    let run = check(scenario.run(false));
    assert!(run.counters.tcp_spilled_bytes > 12 << 20, "{:?}", run.counters);
    assert!(run.counters.tcp_pool_empty > 0, "{:?}", run.counters);
}

/// Tests that free space in a socket's send buffer is used only after the kernel has reported the socket as writable,
/// and that data from the host which the guest does not read meanwhile does not make the engine check that space in a
/// loop.
#[test]
fn slow_small_buffers_with_an_exhausted_pool_lose_no_data() {
    let stalled = resting_a_minute(0);
    let first = dial(Script::source(100_000), stalled.clone());
    for (send_buffer, to_send) in [(4000, 0), (12_000, 0), (4000, 100_000), (12_000, 100_000)] {
        let slow = Script {
            read: TransferPace {
                chunk: 2000,
                every: SECOND / 4,
            },
            send: to_send,
            ..Script::SINK
        };
        let guest = Script {
            stall: stalled.stall.filter(|_| to_send > 0),
            ..Script::source(20_000)
        };
        let mut scenario = Scenario::calm(GuestPlan::Scripted(ScriptedPlan::default()), first.clone());
        scenario.connections = (0..800)
            .map(|index| ScenarioConnection {
                port: 1000 + index,
                host: if index < 600 {
                    stalled.clone()
                } else {
                    slow.clone()
                },
                guest: if index < 600 {
                    first.guest.clone()
                } else {
                    guest.clone()
                },
                ..first.clone()
            })
            .collect();
        scenario.world.host.send_buffer = send_buffer;
        check(scenario.run(false));
    }
}
