use pontoon_relay::Rule;

use super::super::links::LinkWatch;
use super::*;

fn claim(input: &str) -> Claim {
    let rule: Rule = format!("lo {input} -> a 239.9.9.9:9").parse().unwrap();
    Claim::of(&rule.input, Engine::Ring).unwrap()
}

/// That an interface has gone away is not known yet.
#[test]
fn a_group_that_is_not_joined_is_tried_again() {
    let (_, links) = LinkWatch::start().unwrap();
    let mut gone = links.clone();
    gone.get_mut("lo").unwrap().index = u32::MAX >> 1;
    let mut claims = Claims::default();
    let group = claim("239.1.1.1:5001");
    claims.acquire(group.clone(), &gone);
    assert!(claims.incomplete());
    let why = claims.missing(&group).unwrap();
    assert!(why.starts_with("cannot join 239.1.1.1: "), "{why}");
    claims.update(&links);
    assert!(!claims.incomplete());
    assert_eq!(claims.missing(&group), None);
    // A port that somebody has stays his.
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    claims.acquire(claim(&taken.local_addr().unwrap().to_string()), &links);
    assert!(!claims.incomplete());
}

#[test]
fn with_an_mtu_too_small_for_ipv6_a_group_is_left() {
    let v6 = claim("[ff1e::1]:5001");
    assert!(v6.outlives(1500, 1280) && v6.outlives(1000, 1000));
    assert!(!v6.outlives(1500, 1279) && !v6.outlives(1000, 1500));
    assert!(claim("239.1.1.1:5001").outlives(1500, 1000));
}
