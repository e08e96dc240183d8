//! Tests of connections of the guest through guest forwards.

use pontoon_engine::policy::GuestForward;

use super::*;

/// Returns an engine that forwards port 5000 of the gateway to port 80 of `to`.
fn forwarding(to: IpAddr) -> (Given, Segment) {
    let mut config = config(1500);
    let gateway = config.plan.v4.as_ref().expect("the guest has IPv4").gateway;
    config.forwards = vec![forward(gateway, to)];
    let syn = syn_between((GUEST_V4, 4000).into(), (gateway, 5000).into());
    (given(config, HostPlan::default()), syn)
}

fn forward(gateway: Ipv4Addr, to: IpAddr) -> GuestForward {
    GuestForward {
        protocol: Protocol::Tcp,
        from: (gateway, 5000).into(),
        to: (to, 80).into(),
        count: 1,
    }
}

#[test]
fn only_the_forwarded_port_of_the_gateway_reaches_the_host() {
    let (mut given, syn) = forwarding(Ipv4Addr::LOCALHOST.into());
    is_answered(&mut given, &syn);
    for port in [80, 4999, 5001] {
        let mut other = syn.clone();
        other.to.set_port(port);
        is_refused(&mut given, &other);
    }
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

#[test]
fn egress_rules_apply_to_forwards() {
    let (mut given, syn) = forwarding(Ipv4Addr::LOCALHOST.into());
    let rules = ["deny 10.0.2.2:5000/tcp".parse().unwrap()];
    given
        .engine
        .set_rules(&rules, &mut given.link, &mut given.host, START);
    is_refused(&mut given, &syn);
}

#[test]
fn removed_forward_resets_its_connections() {
    let to: IpAddr = Ipv4Addr::LOCALHOST.into();
    let (mut given, syn) = forwarding(to);
    is_answered(&mut given, &syn);
    let IpAddr::V4(gateway) = syn.to.ip() else {
        panic!("{syn:?}");
    };
    let forward = forward(gateway, to);
    given
        .engine
        .remove_forward(&forward, &mut given.link, &mut given.host, START);
    given.pass(millis(1));
    let reset = take_last(&mut given);
    assert_eq!((reset.from, reset.to), (syn.to, syn.from));
    assert!(reset.flags == RST || reset.flags == RST.and(ACK), "{reset:?}");
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    given.take();
    is_refused(&mut given, &dial_again(&syn));
    // A simulated server accepts one client only, so the new forward leads to another port.
    given.engine.add_forward(GuestForward {
        to: (to, 81).into(),
        ..forward
    });
    is_answered(&mut given, &dial_again(&syn));
}

/// Returns a SYN like `syn` from another port.
fn dial_again(syn: &Segment) -> Segment {
    let from = SocketAddr::new(syn.from.ip(), syn.from.port() + 1);
    syn_between(from, syn.to)
}
