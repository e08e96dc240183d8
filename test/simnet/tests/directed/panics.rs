//! Tests of panics in every call of the host (trait `Host`): only the current flow ends.

use pontoon_engine::config::{Protocol, Published};
use pontoon_simnet::app::ConnectionEnd;
use pontoon_simnet::frames::IcmpMessage;
use pontoon_simnet::guest::Guest;
use pontoon_simnet::world::WorkersPlan;

use super::*;

/// Returns a scenario with data in both directions: two connections that the guest opens, one that a client opens,
/// and datagrams.
fn scenario() -> Scenario {
    let sending = |bytes| Script {
        write: pace(2000, 3),
        ..Script::source(bytes)
    };
    let both = |port: u16, opening| ScenarioConnection {
        port,
        ..connection(opening, sending(40_000), sending(30_000))
    };
    let first = both(1000, Opening::Guest(ConnectResult::Now));
    let mut scenario = Scenario::calm(GuestPlan::Scripted(ScriptedPlan::default()), first);
    let later = Opening::Guest(ConnectResult::After(Duration::from_millis(2)));
    scenario
        .connections
        .extend([both(1001, later), both(1002, Opening::Host)]);
    scenario
}

fn world(scenario: &Scenario) -> SimWorld<Scripted> {
    let make = |rng| Scripted::new(addressing(), ScriptedPlan::default(), rng);
    let mut world = SimWorld::new(scenario.world(), Rng::new(11), make);
    scenario.populate(&mut world);
    for port in [7000, 7001] {
        world.guest.inject(Packet::Udp(Datagram {
            from: (GUEST_V4, port).into(),
            to: (server(false), 7).into(),
            payload: vec![1; 100],
        }));
    }
    world.guest.inject(Packet::Icmp(IcmpMessage {
        from: GUEST_V4.into(),
        to: server(false),
        kind: 8,
        code: 0,
        rest: vec![0, 77, 0, 1],
    }));
    world
}

/// Returns the number of connections that did not end as in their scripts, and of datagrams that were not echoed.
fn lost(world: &SimWorld<Scripted>) -> usize {
    let reports = world.guest.reports();
    let broken = reports
        .iter()
        .filter(|report| report.outcome != Some(ConnectionEnd::Closed));
    broken.count() + (2 - world.guest.datagrams().len()) + (1 - world.guest.icmp().len())
}

/// Tests that a published UDP port stays open after a panic, though the flows of its clients may be lost.
#[test]
fn published_port_stays_open_after_a_panic() {
    let mut scenario = scenario();
    scenario.connections.clear();
    let mut plan = scenario.world();
    plan.config.published.push(Published::new(
        Protocol::Udp,
        (core::net::Ipv4Addr::UNSPECIFIED, 5353).into(),
        53,
    ));
    let make = |rng| Scripted::new(addressing(), ScriptedPlan::default(), rng);
    let mut world = SimWorld::new(plan, Rng::new(12), make);
    let client = (server(false), 4000).into();
    assert_eq!(world.open_published(), []);
    for (count, panics) in [(1, false), (1, true), (2, false)] {
        if panics {
            world.host.panic_after(0);
        }
        assert!(world.host.datagram_in(0, client, vec![1; 100]));
        assert_eq!(world.run_for(SECOND), Ok(()));
        assert_eq!(world.guest.datagrams().len(), count);
    }
    assert_eq!(
        (world.counters().panics, world.flows(), world.host.open()),
        (1, 1, 1)
    );
}

#[test]
fn panic_in_any_host_call_ends_one_flow() {
    let scenario = scenario();
    let mut sound = world(&scenario);
    assert_eq!(sound.run_to_end(600 * SECOND), Ok(()));
    assert_eq!((sound.counters().panics, lost(&sound)), (0, 0));
    let calls = sound.host.calls();
    assert!(calls > 100, "{calls} calls");

    let mut costs = [0; 2];
    for after in 0..calls {
        let mut world = world(&scenario);
        world.host.panic_after(after);
        let ended = world.run_to_end(600 * SECOND);
        assert_eq!(ended, Ok(()), "a panic after {after} calls");
        assert_eq!(world.counters().panics, 1, "a panic after {after} calls");
        let lost = lost(&world);
        assert!(lost <= 1, "{lost} lost by a panic after {after} calls");
        costs[lost] += 1;
    }
    // A panic loses nothing if the call is repeated (because of a retransmitted SYN), or after the last byte.
    assert!(costs[1] > 0, "{costs:?}");
}

/// Tests that a panic releases the key of a UDP endpoint, which with several workers is claimed before the socket is
/// opened.
#[test]
fn endpoint_whose_opening_panicked_is_opened_by_the_next_datagram() {
    let mut scenario = scenario();
    scenario.connections.clear();
    let mut plan = scenario.world();
    plan.workers = WorkersPlan {
        count: 2,
        missteering: 0,
        room: 256,
    };
    let make = |rng| Scripted::new(addressing(), ScriptedPlan::default(), rng);
    let mut world = SimWorld::new(plan, Rng::new(12), make);
    world.host.panic_after(0);
    for answered in [0, 1] {
        world.guest.inject(Packet::Udp(Datagram {
            from: (GUEST_V4, 7000).into(),
            to: (server(false), 7).into(),
            payload: vec![1; 100],
        }));
        let _ = world.run_for(SECOND);
        assert_eq!(world.counters().panics, 1);
        assert_eq!(world.guest.datagrams().len(), answered);
    }
}
