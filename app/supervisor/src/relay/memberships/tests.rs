use pontoon_relay::Rule;

use super::super::links::LinkWatch;
use super::*;

fn membership(input: &str) -> Membership {
    let rule: Rule = format!("lo {input} -> a 239.9.9.9:9").parse().unwrap();
    Membership::of(&rule.input, ReceiveMode::Ring).unwrap()
}

/// The interface has gone away, and the supervisor does not know it yet.
#[test]
fn failed_join_is_retried() {
    let (_, links) = LinkWatch::start().unwrap();
    let mut gone = links.clone();
    gone.get_mut("lo").unwrap().index = u32::MAX >> 1;
    let mut memberships = Memberships::default();
    let group = membership("239.1.1.1:5001");
    memberships.acquire(group.clone(), &gone);
    assert!(memberships.incomplete());
    let why = memberships.missing(&group).unwrap();
    assert!(why.starts_with("cannot join 239.1.1.1: "), "{why}");
    memberships.update(&links);
    assert!(!memberships.incomplete());
    assert_eq!(memberships.missing(&group), None);
    // A port that is in use is not retried.
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    memberships.acquire(membership(&taken.local_addr().unwrap().to_string()), &links);
    assert!(!memberships.incomplete());
}

#[test]
fn ipv6_membership_ends_below_the_minimum_mtu() {
    let v6 = membership("[ff1e::1]:5001");
    assert!(v6.survives_mtu_change(1500, 1280) && v6.survives_mtu_change(1000, 1000));
    assert!(!v6.survives_mtu_change(1500, 1279) && !v6.survives_mtu_change(1000, 1500));
    assert!(membership("239.1.1.1:5001").survives_mtu_change(1500, 1000));
}
