use pontoon_relay::Rule;

use super::super::links::LinkWatch;
use super::*;

fn membership(input: &str) -> Membership {
    let rule: Rule = format!("lo {input} -> a 239.9.9.9:9").parse().unwrap();
    Membership::of(&rule.input, ReceiveMode::Ring).unwrap()
}

/// The interface has been removed, and the supervisor has not read that change yet.
#[test]
fn failed_join_is_retried() {
    let (_, links) = LinkWatch::start().unwrap();
    let mut removed = links.clone();
    removed.get_mut("lo").unwrap().index = u32::MAX >> 1;
    let mut memberships = Memberships::new(usize::MAX);
    let group = membership("239.1.1.1:5001");
    memberships.acquire(group.clone(), &removed);
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
fn memberships_beyond_the_limit_are_refused_until_there_is_room() {
    let (_, links) = LinkWatch::start().unwrap();
    let mut memberships = Memberships::new(2);
    let groups = [1, 2, 3, 4].map(|last| membership(&format!("239.1.1.{last}:5001")));
    for group in &groups {
        memberships.acquire(group.clone(), &links);
    }
    let refused =
        |memberships: &Memberships| groups.clone().map(|group| memberships.missing(&group).is_some());
    assert_eq!(refused(&memberships), [false, false, true, true]);
    let why = memberships.missing(&groups[2]).unwrap();
    assert_eq!(why, "cannot join 239.1.1.3: the limit on sockets is reached");
    assert_eq!(memberships.refused(), 2);
    assert!(
        !memberships.incomplete(),
        "another attempt would fail in the same way"
    );
    memberships.update(&links);
    assert_eq!(refused(&memberships), [false, false, true, true]);

    memberships.release(&groups[0]);
    assert!(memberships.incomplete(), "there is room");
    memberships.open_refused(&links);
    assert_eq!(memberships.refused(), 1);
    assert_eq!(memberships.missing(&groups[2]), None);
    assert!(!memberships.incomplete());

    // Sockets of a removed interface are closed, which makes room for others.
    memberships.update(&Links::default());
    assert_eq!((memberships.refused(), memberships.incomplete()), (0, false));
    memberships.update(&links);
    assert_eq!(memberships.refused(), 1);
}

#[test]
fn ipv6_membership_ends_below_the_minimum_mtu() {
    let v6 = membership("[ff1e::1]:5001");
    assert!(v6.survives_mtu_change(1500, 1280) && v6.survives_mtu_change(1000, 1000));
    assert!(!v6.survives_mtu_change(1500, 1279) && !v6.survives_mtu_change(1000, 1500));
    assert!(membership("239.1.1.1:5001").survives_mtu_change(1500, 1000));
}
