//! Tests of connections of the guest through guest forwards.

use pontoon_engine::policy::{GuestForward, GuestForwards};

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
    let remove = |forwards: &mut GuestForwards| forwards.remove(&forward);
    given
        .engine
        .change_forwards(remove, &mut given.link, &mut given.host, START);
    given.pass(millis(1));
    let reset = take_last(&mut given);
    assert_eq!((reset.from, reset.to), (syn.to, syn.from));
    assert!(reset.flags == RST || reset.flags == RST.and(ACK), "{reset:?}");
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    given.take();
    is_refused(&mut given, &dial_again(&syn));
    // The simulated server of port 80 has had its client.
    let to = (to, 81).into();
    let add = |forwards: &mut GuestForwards| forwards.add(GuestForward { to, ..forward });
    given
        .engine
        .change_forwards(add, &mut given.link, &mut given.host, START);
    is_answered(&mut given, &dial_again(&syn));
}

/// Returns a SYN like `syn` from another port.
fn dial_again(syn: &Segment) -> Segment {
    let from = SocketAddr::new(syn.from.ip(), syn.from.port() + 1);
    syn_between(from, syn.to)
}

#[test]
fn forward_to_the_same_address_and_port_reaches_the_host() {
    let own = Ipv4Addr::new(192, 168, 1, 5);
    let mut config = config(1500);
    let at = SocketAddr::from((own, 80));
    config.forwards = vec![GuestForward {
        protocol: Protocol::Tcp,
        from: at,
        to: at,
        count: 1,
    }];
    let mut given = given(config, HostPlan::default());
    given.host.gain_address(own.into());
    is_answered(&mut given, &syn_between((GUEST_V4, 4000).into(), at));
}
