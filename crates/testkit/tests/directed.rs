//! Named situations, each for both families and, where it makes no difference who the guest is, for both guests.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pontoon_engine::Failure;
use pontoon_testkit::app::{End, Pace, Script, Stall};
use pontoon_testkit::frames::{Datagram, Packet, Segment};
use pontoon_testkit::guest::scripted::{Mischief, Scripted, ScriptedPlan};
use pontoon_testkit::host::Answer;
use pontoon_testkit::net::{Filter, Verdict};
use pontoon_testkit::rng::Rng;
use pontoon_testkit::scenario::{Connection, GuestPlan, Opening, Run, Scenario, server};
use pontoon_testkit::settings::{GUEST_V4, GUEST_V6, addressing};
use pontoon_testkit::transcript::{ACK, FIN, SYN};
use pontoon_testkit::world::World;

const SECOND: Duration = Duration::from_secs(1);

fn connection(opening: Opening, guest: Script, host: Script) -> Connection {
    Connection {
        port: 1000,
        v6: false,
        opening,
        guest,
        host,
        after: Duration::from_millis(1),
    }
}

/// A connection that the guest opens.
fn dial(guest: Script, host: Script) -> Connection {
    connection(Opening::Guest(Answer::Now), guest, host)
}

/// The connection in both families, with both guests.
fn everywhere(connection: &Connection) -> Vec<Scenario> {
    let guests = [
        GuestPlan::Smol(64_000, 64_000),
        GuestPlan::Scripted(ScriptedPlan::default()),
    ];
    let families = [false, true];
    guests
        .iter()
        .flat_map(|guest| {
            families.map(|v6| {
                Scenario::calm(
                    guest.clone(),
                    Connection {
                        v6,
                        ..connection.clone()
                    },
                )
            })
        })
        .collect()
}

#[track_caller]
fn check(run: Run) -> Run {
    if let Some(failure) = run.failure {
        panic!("{failure}\n{}", run.trace);
    }
    run
}

/// Loses the first `count` segments that `is` names.
fn lose(count: u32, is: impl Fn(&Segment) -> bool + Send + 'static) -> (Option<Filter>, Arc<AtomicU32>) {
    let lost = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&lost);
    let filter = move |packet: &Packet| match packet {
        Packet::Tcp(segment) if is(segment) && lost.load(Ordering::Relaxed) < count => {
            lost.fetch_add(1, Ordering::Relaxed);
            Verdict::Drop
        }
        _ => Verdict::Pass,
    };
    (Some(Box::new(filter)), counter)
}

#[test]
fn refused() {
    for answer in [
        Answer::Fail(Failure::Refused),
        Answer::FailAfter(SECOND / 2, Failure::Refused),
    ] {
        for scenario in everywhere(&connection(
            Opening::Guest(answer),
            Script::source(10),
            Script::SINK,
        )) {
            let run = check(scenario.run(true));
            assert_eq!(
                (run.counters.tcp_connect_failed, run.counters.icmp_errors_down),
                (1, 0)
            );
        }
    }
}

#[test]
fn unreachable() {
    for failure in [Failure::NetUnreachable, Failure::HostUnreachable] {
        let opening = Opening::Guest(Answer::FailAfter(SECOND / 2, failure));
        for scenario in everywhere(&connection(opening, Script::source(10), Script::SINK)) {
            let run = check(scenario.run(true));
            assert_eq!(
                (run.counters.tcp_connect_failed, run.counters.icmp_errors_down),
                (1, 1)
            );
        }
    }
}

#[test]
fn connect_timeout() {
    for scenario in everywhere(&connection(
        Opening::Guest(Answer::Never),
        Script::source(10),
        Script::SINK,
    )) {
        let run = check(scenario.run(true));
        assert_eq!(run.counters.tcp_connect_failed, 1);
    }
}

#[test]
fn half_close_by_the_guest() {
    let guest = Script::source(50_000);
    let write = Pace {
        chunk: 1000,
        every: Duration::from_millis(3),
    };
    let host = Script {
        send: 50_000,
        write,
        ..Script::SINK
    };
    for scenario in everywhere(&dial(guest, host)) {
        check(scenario.run(true));
    }
}

#[test]
fn half_close_by_the_host() {
    let write = Pace {
        chunk: 1000,
        every: Duration::from_millis(3),
    };
    let guest = Script {
        send: 50_000,
        write,
        ..Script::SINK
    };
    for scenario in everywhere(&dial(guest, Script::source(50_000))) {
        check(scenario.run(true));
    }
}

#[test]
fn both_close_at_once() {
    for bytes in [0, 1, 5000] {
        for scenario in everywhere(&dial(Script::source(bytes), Script::source(bytes))) {
            check(scenario.run(true));
        }
    }
}

#[test]
fn reset_by_the_guest() {
    let guest = Script {
        end: End::Reset(20_000),
        ..Script::source(50_000)
    };
    for scenario in everywhere(&dial(
        guest,
        Script {
            send: 50_000,
            ..Script::SINK
        },
    )) {
        let run = check(scenario.run(true));
        assert_eq!(run.counters.tcp_reset_by_guest, 1);
    }
}

#[test]
fn reset_by_the_host() {
    for after in [0, 1, 20_000, 50_000] {
        let host = Script {
            end: End::Reset(after),
            ..Script::source(50_000)
        };
        for scenario in everywhere(&dial(
            Script {
                send: 50_000,
                ..Script::SINK
            },
            host,
        )) {
            let run = check(scenario.run(true));
            assert_eq!(run.counters.tcp_reset_by_host, 1, "{:?}", run.trace);
        }
    }
}

#[test]
fn a_guest_that_stops_reading_for_a_minute() {
    let stall = Some(Stall {
        after: 10_000,
        time: 60 * SECOND,
    });
    let guest = Script {
        stall,
        ..Script::SINK
    };
    for scenario in everywhere(&dial(guest, Script::source(3_000_000))) {
        let run = check(scenario.run(false));
        assert!(run.virtual_time > 60 * SECOND);
    }
}

#[test]
fn a_host_that_stops_reading_for_a_minute() {
    let stall = Some(Stall {
        after: 10_000,
        time: 60 * SECOND,
    });
    let host = Script {
        stall,
        ..Script::SINK
    };
    for mut scenario in everywhere(&dial(Script::source(3_000_000), host)) {
        scenario.world.host.send_buffer = 50_000;
        let run = check(scenario.run(false));
        assert!(run.virtual_time > 60 * SECOND);
        assert!(run.counters.tcp_spilled_bytes > 0);
    }
}

#[test]
fn a_window_that_shuts_and_opens() {
    let read = Pace {
        chunk: 700,
        every: Duration::from_millis(2),
    };
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
            let connection = Connection {
                v6,
                ..dial(guest.clone(), Script::source(100_000))
            };
            check(Scenario::calm(plan, connection).run(false));
        }
    }
}

#[test]
fn segments_out_of_order_with_and_without_sack() {
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
        let write = Pace {
            chunk: 20_000,
            every: Duration::from_millis(1),
        };
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
fn a_lost_syn_ack() {
    for scenario in everywhere(&dial(Script::source(1000), Script::SINK)) {
        let (down, lost) = lose(2, |segment| segment.flags.has(SYN));
        check(scenario.run_filtered(true, None, down));
        assert_eq!(lost.load(Ordering::Relaxed), 2);
    }
}

#[test]
fn a_lost_fin_in_each_direction() {
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
fn time_wait_acknowledges_again() {
    // The host closes first, so TIME_WAIT is the engine's; its acknowledgement of the guest's FIN is lost.
    for scenario in everywhere(&dial(Script::SINK, Script::source(1000))) {
        let fin = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&fin);
        let up: Filter = Box::new(move |packet| {
            if let Packet::Tcp(segment) = packet
                && segment.flags.has(FIN)
            {
                seen.store(1, Ordering::Relaxed);
            }
            Verdict::Pass
        });
        let (down, lost) = lose(1, move |segment| {
            fin.load(Ordering::Relaxed) == 1 && segment.flags == ACK && segment.span() == 0
        });
        check(scenario.run_filtered(true, Some(up), down));
        assert_eq!(lost.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn keepalive_turns_keepalive_on() {
    let mischief = Mischief {
        keepalive: 300,
        ..Mischief::default()
    };
    let plan = ScriptedPlan {
        mischief,
        ..ScriptedPlan::default()
    };
    let write = Pace {
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
fn intruders_are_challenged_and_do_no_harm() {
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
    let write = Pace {
        chunk: 1000,
        every: Duration::from_millis(3),
    };
    let guest = Script {
        write,
        ..Script::source(20_000)
    };
    let host = Script {
        write,
        ..Script {
            send: 100_000,
            ..Script::SINK
        }
    };
    let scenario = Scenario::calm(GuestPlan::Scripted(plan), dial(guest, host));
    let run = check(scenario.run(true));
    assert!(run.counters.tcp_challenges > 10, "{:?}", run.counters);
    assert_eq!(run.counters.tcp_reset_by_guest, 0);
}

#[test]
fn many_flows_to_hosts_that_do_not_read_exhaust_the_pool_and_lose_nothing() {
    let stall = Some(Stall {
        after: 0,
        time: 60 * SECOND,
    });
    let host = Script {
        stall,
        ..Script::SINK
    };
    let plan = ScriptedPlan {
        quick_ack: true,
        ..ScriptedPlan::default()
    };
    let first = dial(Script::source(100_000), host);
    let mut scenario = Scenario::calm(GuestPlan::Scripted(plan), first.clone());
    scenario.world.host.send_buffer = 4000;
    scenario.connections = (0..700)
        .map(|index| Connection {
            port: 1000 + index,
            ..first.clone()
        })
        .collect();
    let run = check(scenario.run(false));
    assert!(run.counters.tcp_spilled_bytes > 12 << 20, "{:?}", run.counters);
    assert!(run.counters.tcp_pool_empty > 0, "{:?}", run.counters);
}

#[test]
fn peeking_from_the_head_where_the_kernel_is_old() {
    for mut scenario in everywhere(&dial(Script::SINK, Script::source(3_000_000))) {
        scenario.world.host.peeks_at_offset = false;
        scenario.world.host.receive_buffer = 4 << 20;
        check(scenario.run(false));
    }
}

#[test]
fn a_client_of_a_published_port() {
    for scenario in everywhere(&connection(
        Opening::Host,
        Script::echo(),
        Script::source(100_000),
    )) {
        let run = check(scenario.run(true));
        assert_eq!(run.counters.tcp_accepted, 1);
    }
}

#[test]
fn a_client_of_a_published_port_is_refused_by_the_guest() {
    for scenario in everywhere(&connection(
        Opening::HostToNobody,
        Script::SINK,
        Script::source(10),
    )) {
        check(scenario.run(true));
    }
}

#[test]
fn a_client_of_a_published_port_is_not_answered_by_the_guest() {
    for scenario in everywhere(&connection(
        Opening::HostToNobody,
        Script::SINK,
        Script::source(10),
    )) {
        let (down, lost) = lose(u32::MAX, |segment| segment.flags.has(SYN));
        check(scenario.run_filtered(true, None, down));
        assert!(lost.load(Ordering::Relaxed) >= 3);
    }
}

#[test]
fn datagrams_come_back() {
    let scenario = Scenario::calm(
        GuestPlan::Scripted(ScriptedPlan::default()),
        dial(Script::SINK, Script::source(0)),
    );
    for v6 in [false, true] {
        let make = |rng| Scripted::new(addressing(), ScriptedPlan::default(), rng);
        let mut world = World::new(scenario.world(), Rng::new(3), make);
        let own = if v6 {
            GUEST_V6.into()
        } else {
            core::net::IpAddr::from(GUEST_V4)
        };
        let sent: Vec<_> = [0, 1, 500, 1400]
            .into_iter()
            .map(|len| Datagram {
                from: (own, 5000).into(),
                to: (server(v6), 7).into(),
                payload: pontoon_testkit::pattern::bytes(7, len as u64, len),
            })
            .collect();
        for datagram in &sent {
            world.guest.inject(Packet::Udp(datagram.clone()));
        }
        let result = world.run_until(10 * SECOND, |world| world.guest.datagrams().len() == sent.len());
        assert_eq!(result, Ok(()));
        for (sent, received) in sent.iter().zip(world.guest.datagrams()) {
            assert_eq!((received.from, received.to), (sent.to, sent.from));
            assert_eq!(received.payload, sent.payload);
        }
        let flows_gone = world.run_until(300 * SECOND, |world| {
            world.engine.flows() == 0 && world.host.open() == 0
        });
        assert_eq!(flows_gone, Ok(()));
    }
}

/// What the link rejects is offered again, by the timer if nothing else happens.
#[test]
fn a_link_that_rejects_frames() {
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

/// Whatever finds no room goes on when there is room, not when some timer looks.
#[test]
fn a_link_that_is_often_full_costs_its_pauses_and_no_more() {
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
    // A second of it is TIME_WAIT.
    assert!(run.virtual_time < 2 * SECOND, "{:?}", run.virtual_time);
}

#[test]
fn a_link_that_cuts_is_given_many_segments_in_a_frame() {
    for v6 in [false, true] {
        let connection = Connection {
            v6,
            ..dial(Script::SINK, Script::source(1_000_000))
        };
        let scenario = Scenario::calm(GuestPlan::Scripted(ScriptedPlan::default()), connection);
        let run = check(scenario.run(false));
        assert!(run.counters.frames_down < 50, "{:?}", run.counters);
    }
}

#[test]
fn a_long_upload_widens_the_window_to_its_limit() {
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

/// What little room a socket has is offered once the kernel says that it counts as writable.
#[test]
fn small_buffers_that_drain_slowly_while_the_pool_is_exhausted() {
    let stall = Some(Stall {
        after: 0,
        time: 60 * SECOND,
    });
    let stalled = Script {
        stall,
        ..Script::SINK
    };
    let slow = Script {
        read: Pace {
            chunk: 2000,
            every: SECOND / 4,
        },
        ..Script::SINK
    };
    let first = dial(Script::source(20_000), stalled);
    let mut scenario = Scenario::calm(GuestPlan::Scripted(ScriptedPlan::default()), first.clone());
    scenario.connections = (0..800)
        .map(|index| Connection {
            port: 1000 + index,
            host: if index < 600 {
                first.host.clone()
            } else {
                slow.clone()
            },
            guest: Script::source(if index < 600 { 100_000 } else { 20_000 }),
            ..first.clone()
        })
        .collect();
    for send_buffer in [4000, 12_000] {
        scenario.world.host.send_buffer = send_buffer;
        check(scenario.run(false));
    }
}
