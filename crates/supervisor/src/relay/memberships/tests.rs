use pontoon_relay::Rule;

use super::super::links::LinkWatch;
use super::*;

fn membership(input: &str) -> Membership {
    let rule: Rule = format!("lo {input} -> a 239.9.9.9:9").parse().unwrap();
    Membership::of(&rule.input, ReceiveMode::Ring).unwrap()
}

/// That an interface has gone away is not known yet.
#[test]
fn a_group_that_is_not_joined_is_tried_again() {
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
    // A port that somebody has stays his.
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    memberships.acquire(membership(&taken.local_addr().unwrap().to_string()), &links);
    assert!(!memberships.incomplete());
}

#[test]
fn with_an_mtu_too_small_for_ipv6_a_group_is_left() {
    let v6 = membership("[ff1e::1]:5001");
    assert!(v6.survives_mtu_change(1500, 1280) && v6.survives_mtu_change(1000, 1000));
    assert!(!v6.survives_mtu_change(1500, 1279) && !v6.survives_mtu_change(1000, 1500));
    assert!(membership("239.1.1.1:5001").survives_mtu_change(1500, 1000));
}
