//! Tests of several workers whose frames arrive at any of them.

use pontoon_engine::Engine;
use pontoon_engine::config::{Protocol, Published};
use pontoon_engine::decider::{Answer, DEADLINE, Denial, TokenState, Verdict};
use pontoon_simnet::decider::ScriptedDecider;
use pontoon_simnet::frames::IcmpMessage;
use pontoon_simnet::world::WorkersPlan;

use super::*;

const ANYWHERE: WorkersPlan = WorkersPlan {
    count: 4,
    missteering: 1000,
    room: 256,
};

fn world(seed: u64) -> SimWorld<Scripted> {
    let mut scenario = Scenario::calm(
        GuestPlan::Scripted(ScriptedPlan::default()),
        dial(Script::SINK, Script::source(0)),
    );
    scenario.world.workers = ANYWHERE;
    let make = |rng| Scripted::new(addressing(), ScriptedPlan::default(), rng);
    SimWorld::new(scenario.world(), Rng::new(seed), make)
}

fn own(v6: bool) -> core::net::IpAddr {
    if v6 { GUEST_V6.into() } else { GUEST_V4.into() }
}

/// Tests that a UDP endpoint of the guest has one socket, and so one source port, even if its first datagrams arrive
/// at all workers at the same time.
#[test]
fn udp_endpoint_has_one_socket_in_all_workers() {
    for seed in 0..50 {
        for v6 in [false, true] {
            let mut world = world(seed);
            for port in 0..100 {
                world.guest.inject(Packet::Udp(Datagram {
                    from: (own(v6), 5000).into(),
                    to: (server(v6), 7000 + port).into(),
                    payload: vec![1; 100],
                }));
            }
            let result = world.run_until(10 * SECOND, |world| world.guest.datagrams().len() == 100);
            assert_eq!(result, Ok(()));
            assert_eq!((world.flows(), world.host.open()), (1, 1), "seed {seed}");
            assert!(world.counters().handed_over > 25);
            assert_eq!(world.counters().hand_overs_lost, 0);
            let flows_gone = world.run_until(300 * SECOND, |world| world.host.open() == 0);
            assert_eq!(flows_gone, Ok(()));
            let mesh = world.mesh.as_ref().unwrap();
            assert_eq!((mesh.owned(), mesh.flows()), (0, 0));
        }
    }
}

/// Tests that the worker at which a segment of an unknown connection arrives resets it, once.
#[test]
fn segment_of_no_workers_connection_is_reset_once() {
    let mut world = world(7);
    for port in 0..40 {
        world.guest.inject(Packet::Tcp(Segment {
            from: (own(false), 5000 + port).into(),
            to: (server(false), 80).into(),
            seq: 1,
            ack: 1,
            flags: ACK,
            window: 1000,
            ..Segment::EMPTY
        }));
    }
    assert_eq!(world.run_for(SECOND), Ok(()));
    assert_eq!(world.counters().tcp_unknown, 40);
    assert_eq!(world.counters().frames_down, 40);
    assert_eq!(world.counters().handed_over, 0);
}

/// Tests that the first worker owns all ICMP echo ids.
#[test]
fn echo_id_has_one_socket_in_all_workers() {
    let mut world = world(3);
    for seq in 0..40 {
        world.guest.inject(Packet::Icmp(IcmpMessage {
            from: own(false),
            to: server(false),
            kind: 8,
            code: 0,
            rest: vec![0, 77, 0, seq],
        }));
    }
    let result = world.run_until(10 * SECOND, |world| world.guest.icmp().len() == 40);
    assert_eq!(result, Ok(()));
    assert_eq!((world.flows(), world.host.open()), (1, 1));
    assert_eq!(world.workers[0].flows(), 1);
    assert!(world.counters().handed_over > 10);
}

/// Tests that TCP connections to the DNS forwarder use the state of the resolvers that queries over UDP have
/// determined, regardless of the worker at which the connection arrives.
#[test]
fn tcp_queries_avoid_a_failed_resolver_in_all_workers() {
    for v6 in [false, true] {
        let mut scenario = Scenario::calm(
            GuestPlan::Scripted(ScriptedPlan::default()),
            dial(Script::SINK, Script::source(0)),
        );
        scenario.world.workers = ANYWHERE;
        let [failed, working] = [9991, 9992];
        scenario.world.config.resolvers = vec![(server(v6), failed).into(), (server(v6), working).into()];
        let make = |rng| Scripted::new(addressing(), ScriptedPlan::default(), rng);
        let mut world = SimWorld::new(scenario.world(), Rng::new(11), make);
        world.host.refuse_udp(failed);
        world.host.serve(working, ConnectResult::Never, Script::SINK);
        let addresses = scenario.world.config.plan.clone();
        let forwarder: core::net::IpAddr = match v6 {
            true => addresses.v6.unwrap().dns.unwrap().into(),
            false => addresses.v4.unwrap().dns.unwrap().into(),
        };
        world.guest.inject(Packet::Udp(Datagram {
            from: (own(v6), 5000).into(),
            to: (forwarder, 53).into(),
            // A query of type NS for the root.
            payload: vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1],
        }));
        assert_eq!(world.run_for(SECOND / 2), Ok(()));
        for port in 0..40 {
            world.guest.inject(Packet::Tcp(Segment {
                from: (own(v6), 6000 + port).into(),
                to: (forwarder, 53).into(),
                flags: SYN,
                window: 1000,
                ..Segment::EMPTY
            }));
        }
        assert_eq!(world.run_for(SECOND / 4), Ok(()));
        let counters = world.counters();
        assert_eq!((counters.tcp_opened, counters.tcp_connect_failed), (40, 0));
        assert_eq!(counters.dns_failovers, 1);
    }
}

/// Tests that a new connection evicts a datagram flow of another worker if datagram flows occupy all slots.
#[test]
fn datagram_flows_of_other_workers_are_evicted() {
    let mut scenario = Scenario::calm(
        GuestPlan::Scripted(ScriptedPlan::default()),
        dial(Script::SINK, Script::source(0)),
    );
    scenario.world.workers = ANYWHERE;
    scenario.world.config.max_flows = 5;
    let make = |rng| Scripted::new(addressing(), ScriptedPlan::default(), rng);
    let mut world = SimWorld::new(scenario.world(), Rng::new(5), make);
    world.host.serve(80, ConnectResult::Never, Script::SINK);
    for _ in 0..5 {
        for port in 0..5 {
            world.guest.inject(Packet::Udp(Datagram {
                from: (own(false), 5000 + port).into(),
                to: (server(false), 7).into(),
                payload: vec![1; 10],
            }));
        }
        assert_eq!(world.run_for(SECOND / 10), Ok(()));
    }
    for port in 0..5 {
        world.guest.inject(Packet::Tcp(Segment {
            from: (own(false), 6000 + port).into(),
            to: (server(false), 80).into(),
            flags: SYN,
            window: 1000,
            ..Segment::EMPTY
        }));
        assert_eq!(world.run_for(SECOND / 10), Ok(()));
    }
    let counters = world.counters();
    assert_eq!((counters.tcp_opened, counters.flows_refused), (5, 0));
    assert!(counters.udp_evicted >= 5, "{}", counters.udp_evicted);
}

/// Tests that `--max-udp-ports` limits all workers together; only a worker without an endpoint may open one beyond
/// the limit.
#[test]
fn max_udp_ports_limits_all_workers_together() {
    let mut scenario = Scenario::calm(
        GuestPlan::Scripted(ScriptedPlan::default()),
        dial(Script::SINK, Script::source(0)),
    );
    scenario.world.workers = ANYWHERE;
    scenario.world.config.max_udp_ports = 20;
    let make = |rng| Scripted::new(addressing(), ScriptedPlan::default(), rng);
    let mut world = SimWorld::new(scenario.world(), Rng::new(5), make);
    for port in 0..60 {
        for v6 in [false, true] {
            world.guest.inject(Packet::Udp(Datagram {
                from: (own(v6), 5000 + port).into(),
                to: (server(v6), 7).into(),
                payload: vec![1; 10],
            }));
        }
    }
    assert_eq!(world.run_for(SECOND), Ok(()));
    let open = world.host.open();
    assert!((40..48).contains(&open), "{open}");
    let counters = world.counters();
    assert_eq!(
        (counters.udp_evicted, counters.flows_refused),
        (120 - open as u64, 0)
    );
}

/// Tests that `--max-flows` limits all workers together, exceeded by at most one flow of each.
#[test]
fn max_flows_limits_all_workers_together() {
    let mut scenario = Scenario::calm(
        GuestPlan::Scripted(ScriptedPlan::default()),
        dial(Script::SINK, Script::source(0)),
    );
    scenario.world.workers = ANYWHERE;
    scenario.world.config.max_flows = 20;
    let make = |rng| Scripted::new(addressing(), ScriptedPlan::default(), rng);
    let mut world = SimWorld::new(scenario.world(), Rng::new(5), make);
    for port in 0..60 {
        world.guest.inject(Packet::Udp(Datagram {
            from: (own(false), 5000 + port).into(),
            to: (server(false), 7).into(),
            payload: vec![1; 10],
        }));
    }
    assert_eq!(world.run_for(SECOND), Ok(()));
    assert_eq!((world.flows(), world.host.open()), (20, 20));
    let counters = world.counters();
    assert_eq!(counters.udp_evicted + counters.flows_refused, 40);
}

/// Tests a TCP connection to the DNS forwarder, which the first worker owns, if only other workers have a datagram
/// flow to evict for it.
#[test]
fn tcp_query_evicts_a_datagram_flow_of_another_worker() {
    let mut scenario = Scenario::calm(
        GuestPlan::Scripted(ScriptedPlan::default()),
        dial(Script::SINK, Script::source(0)),
    );
    scenario.world.workers = ANYWHERE;
    scenario.world.config.max_flows = 3;
    scenario.world.config.resolvers = vec![(server(false), 9992).into()];
    let forwarder = scenario.world.config.plan.v4.as_ref().unwrap().dns.unwrap();
    for seed in 0..20 {
        let make = |rng| Scripted::new(addressing(), ScriptedPlan::default(), rng);
        let mut world = SimWorld::new(scenario.world(), Rng::new(seed), make);
        world.host.serve(9992, ConnectResult::Never, Script::SINK);
        for port in 0..3 {
            world.guest.inject(Packet::Udp(Datagram {
                from: (own(false), 5000 + port).into(),
                to: (server(false), 7).into(),
                payload: vec![1; 10],
            }));
        }
        assert_eq!(world.run_for(SECOND / 10), Ok(()));
        for port in 0..10 {
            world.guest.inject(Packet::Tcp(Segment {
                from: (own(false), 6000 + port).into(),
                to: (forwarder, 53).into(),
                flags: SYN,
                window: 1000,
                ..Segment::EMPTY
            }));
        }
        assert_eq!(world.run_for(SECOND), Ok(()));
        let counters = world.counters();
        assert_eq!(counters.hand_overs_lost, 0, "seed {seed}");
        assert_eq!(counters.tcp_opened + counters.flows_refused, 10, "seed {seed}");
    }
}

/// Tests the shares of published ports. One port can have different indices in two workers, as only the first worker
/// has the UDP ports.
#[test]
fn ports_with_the_same_index_in_two_workers_have_separate_shares() {
    let port = |port| {
        Published::new(
            Protocol::Tcp,
            (core::net::Ipv4Addr::UNSPECIFIED, port).into(),
            port,
        )
    };
    let mut scenario = Scenario::calm(
        GuestPlan::Scripted(ScriptedPlan::default()),
        dial(Script::SINK, Script::source(0)),
    );
    scenario.world.workers = WorkersPlan { count: 2, ..ANYWHERE };
    // All frames to the guest are lost, so that no connection ends.
    scenario.world.down.loss = 1000;
    scenario.world.config.max_flows = 9;
    let mut plan = scenario.world();
    plan.config.published = vec![port(8000)];
    let make = |rng| Scripted::new(addressing(), ScriptedPlan::default(), rng);
    let mut world = SimWorld::new(plan, Rng::new(1), make);
    let now = world.now();
    world.workers[1]
        .publish(0, port(8001), &mut world.link, &mut world.host, now)
        .unwrap();
    for client in 0..8 {
        let at = now + Duration::from_millis(1 + u64::from(client));
        let peer = (server(false), 5000 + client).into();
        world.host.connect_in(0, peer, 100 + client, Script::SINK, at);
    }
    assert_eq!(world.run_for(Duration::from_millis(100)), Ok(()));
    let accepted = [0, 1].map(|worker: usize| world.workers[worker].counters().tcp_accepted);
    assert!(
        accepted.iter().all(|count| (1..=7).contains(count)),
        "{accepted:?}"
    );
    assert_eq!(accepted.iter().sum::<u64>(), 8);
    assert_eq!(world.counters().tcp_share_refused, 0);
}

/// Tests that a guest's port whose publication has failed is treated as any other port.
#[test]
fn failed_publish_leaves_the_port_to_the_guest() {
    let port = |port| {
        Published::new(
            Protocol::Udp,
            (core::net::Ipv4Addr::UNSPECIFIED, port).into(),
            port,
        )
    };
    let mut world = world(1);
    let now = world.now();
    let (link, host) = (&mut world.link, &mut world.host);
    assert_eq!(world.workers[0].publish(0, port(4000), link, host, now), Ok(()));
    // The simulated host refuses the socket, as an endpoint of the guest has that port.
    let refused = world.workers[1].publish(0, port(5000), link, host, now);
    assert_eq!(refused, Err(pontoon_engine::Failure::Invalid));
    world.guest.inject(Packet::Udp(Datagram {
        from: (own(false), 5000).into(),
        to: (server(false), 7000).into(),
        payload: vec![1; 100],
    }));
    let result = world.run_until(10 * SECOND, |world| world.guest.datagrams().len() == 1);
    assert_eq!(result, Ok(()));
    assert_eq!(world.flows(), 2);
}

/// Tests that a flow that is asked about by one worker is not asked about by another, wherever its further frames arrive, and
/// that the worker that has asked applies the verdict.
#[test]
fn pending_flow_belongs_to_the_worker_that_has_asked() {
    for seed in 0..20 {
        let mut world = world(seed);
        let decider = ScriptedDecider::new(Answer::Later);
        for worker in &mut world.workers {
            worker.set_decider(Box::new(decider.clone()), DEADLINE);
        }
        for port in 0..10 {
            world.host.serve(80 + port, ConnectResult::Now, Script::SINK);
        }
        for _ in 0..20 {
            for port in 0..10 {
                world.guest.inject(Packet::Tcp(Segment {
                    from: (own(false), 5000).into(),
                    to: (server(false), 80 + port).into(),
                    seq: 1,
                    flags: SYN,
                    window: 1000,
                    ..Segment::EMPTY
                }));
                world.guest.inject(Packet::Udp(Datagram {
                    from: (own(false), 5000).into(),
                    to: (server(false), 7000 + port).into(),
                    payload: vec![1; 100],
                }));
                world.guest.inject(Packet::Icmp(IcmpMessage {
                    from: own(false),
                    to: server(false),
                    kind: 8,
                    code: 0,
                    rest: vec![0, u8::try_from(port).unwrap(), 0, 1],
                }));
            }
        }
        assert_eq!(world.run_for(SECOND), Ok(()));
        let requests = decider.take();
        assert_eq!(requests.len(), 30, "seed {seed}");
        assert_eq!((world.flows(), world.host.open()), (0, 0));
        let repeated = world.counters().decisions_repeated + world.counters().hand_overs_lost;
        assert_eq!(repeated, 19 * 30);
        for (nth, request) in requests.iter().enumerate() {
            let worker = usize::from(request.token.worker().0);
            let verdict = match nth % 3 {
                0 => Verdict::Allow,
                1 => Verdict::Deny(Denial::Drop),
                // Expires.
                _ => continue,
            };
            let now = world.now();
            let (link, host) = (&mut world.link, &mut world.host);
            let state = world.workers[worker].take_verdict(request.token, verdict, link, host, now);
            assert_eq!(state, TokenState::Known);
        }
        assert_eq!(world.run_for(3 * SECOND), Ok(()));
        assert_eq!(world.counters().decisions_expired, 10);
        let pending: usize = world.workers.iter().map(Engine::pending_decisions).sum();
        assert_eq!(pending, 0);
        assert!(world.counters().tcp_opened > 0);
        // All claims of flows that were not opened are released.
        assert_eq!(world.run_for(400 * SECOND), Ok(()));
        let mesh = world.mesh.as_ref().unwrap();
        assert_eq!(
            (mesh.owned(), mesh.flows()),
            (world.flows(), world.flows() as u32)
        );
    }
}
