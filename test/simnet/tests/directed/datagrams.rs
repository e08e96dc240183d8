//! Tests of UDP datagrams from the guest, which the simulated host echoes.

use super::*;

#[test]
fn datagrams_are_echoed() {
    let scenario = Scenario::calm(
        GuestPlan::Scripted(ScriptedPlan::default()),
        dial(Script::SINK, Script::source(0)),
    );
    for v6 in [false, true] {
        let make = |rng| Scripted::new(addressing(), ScriptedPlan::default(), rng);
        let mut world = SimWorld::new(scenario.world(), Rng::new(3), make);
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
                payload: pontoon_simnet::pattern::bytes(7, len as u64, len),
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
        let flows_gone = world.run_until(300 * SECOND, |world| world.flows() == 0 && world.host.open() == 0);
        assert_eq!(flows_gone, Ok(()));
    }
}
