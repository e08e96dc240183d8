//! Tests of the limit on memberships: which reports are ignored, and which memberships are evicted.

use super::*;

const FLOODER: &str = "10.0.0.66";

fn group(number: usize) -> String {
    Ipv4Addr::from(0xef00_0000 + u32::try_from(number).unwrap()).to_string()
}

fn any(host: &str, group: &str) -> Message {
    report_of(host, group, SourceChange::Any)
}

#[test]
fn groups_of_one_host_beyond_the_limit_are_ignored() {
    let mut querier = querier();
    for number in 0..10_000 {
        querier.handle(any(FLOODER, &group(number)), at(0));
    }
    assert_eq!(wanted(&mut querier).len(), MAX_MEMBERSHIPS);
    let counts = LimitCounts {
        ignored: 10_000 - MAX_MEMBERSHIPS as u64,
        evicted: 0,
    };
    assert_eq!(querier.take_limit_counts(), counts);
    assert_eq!(querier.take_limit_counts(), LimitCounts::default());
}

/// Tests that one host cannot take all memberships. The changes are reported in an order in which the supervisor never
/// has more groups than the limit.
#[test]
fn host_with_most_groups_yields_its_newest_to_other_hosts() {
    for is_reported in [true, false] {
        let mut querier = querier();
        for number in 0..MAX_MEMBERSHIPS {
            querier.handle(any(FLOODER, &group(number)), at(0));
        }
        if is_reported {
            wanted(&mut querier);
        }
        querier.handle(any("10.0.0.7", "239.1.1.1"), at(1));
        // The other host's group is not evicted for the first host, and stays if that host reports it, too.
        querier.handle(any(FLOODER, "239.1.1.1"), at(2));
        querier.handle(any(FLOODER, &group(MAX_MEMBERSHIPS)), at(2));
        querier.handle(any("10.0.0.8", "239.1.1.2"), at(3));
        let groups = wanted(&mut querier);
        assert_eq!(groups.len(), MAX_MEMBERSHIPS);
        for wanted in ["239.1.1.1", "239.1.1.2", &group(MAX_MEMBERSHIPS - 3)] {
            assert!(groups.iter().any(|group| group == wanted), "{wanted}");
        }
        for evicted in [
            group(MAX_MEMBERSHIPS - 1),
            group(MAX_MEMBERSHIPS - 2),
            group(MAX_MEMBERSHIPS),
        ] {
            assert!(!groups.contains(&evicted), "{evicted}");
        }
        let counts = LimitCounts {
            ignored: 1,
            evicted: 2,
        };
        assert_eq!(querier.take_limit_counts(), counts);
    }
}

#[test]
fn evicted_group_is_added_again_when_there_is_room() {
    let mut querier = querier();
    for number in 0..MAX_MEMBERSHIPS {
        querier.handle(any(FLOODER, &group(number)), at(0));
    }
    wanted(&mut querier);
    querier.handle(any("10.0.0.7", "239.1.1.1"), at(100));
    // Before its removal is reported, the same group is reported by a third host.
    let newest = group(MAX_MEMBERSHIPS - 1);
    querier.handle(any("10.0.0.8", &newest), at(100));
    let groups = wanted(&mut querier);
    assert!(groups.contains(&newest) && groups.contains(&"239.1.1.1".to_owned()));
    assert_eq!(groups.len(), MAX_MEMBERSHIPS);
    // All groups of the first host expire.
    querier.tick(at(300));
    assert_eq!(wanted(&mut querier).len(), 2);
    querier.handle(any(FLOODER, &group(5)), at(301));
    assert_eq!(wanted(&mut querier).len(), 3);
}

#[test]
fn hosts_with_equal_numbers_of_groups_evict_none_of_each_other() {
    let mut querier = querier();
    for number in 0..MAX_MEMBERSHIPS {
        let host = Ipv4Addr::from(0x0a01_0000 + u32::try_from(number).unwrap()).to_string();
        querier.handle(any(&host, &group(number)), at(0));
    }
    let before = wanted(&mut querier);
    querier.handle(any("10.0.0.7", "239.1.1.1"), at(1));
    assert_eq!(wanted(&mut querier), before);
    assert_eq!(querier.take_limit_counts().ignored, 1);
}

#[test]
fn restored_groups_yield_to_reported_ones() {
    let mut querier = querier();
    for number in 0..MAX_MEMBERSHIPS {
        let group = address(&group(number));
        querier.restore(group, SourceFilter::Any, at(260));
        querier.memberships.set(group, SourceFilter::Any).unwrap();
    }
    querier.handle(any("10.0.0.7", "239.1.1.1"), at(1));
    let groups = wanted(&mut querier);
    assert!(groups.contains(&"239.1.1.1".to_owned()) && groups.len() == MAX_MEMBERSHIPS);
}

/// A membership for one sender counts like one for any sender, in the account of the host that has reported it, also if other
/// hosts are members of the same group.
#[test]
fn host_with_most_senders_yields_to_other_hosts() {
    let mut querier = querier();
    let sources = |first: u32| SourceChange::Include {
        sources: (0..64)
            .map(|number| Ipv4Addr::from(0x0a01_0000 + first + number).into())
            .collect(),
        exclusive: false,
    };
    // The other host is a member of each group before the flooding host adds its senders.
    for number in 0..10 {
        querier.handle(any("10.0.0.7", &group(number)), at(0));
    }
    for number in 0..400 {
        querier.handle(report_of(FLOODER, &group(number), sources(0)), at(0));
    }
    assert!(querier.take_limit_counts().ignored > 0);
    assert_eq!(
        wanted(&mut querier).len(),
        MAX_MEMBERSHIPS - 10 * 64,
        "10 groups are for any sender"
    );
    for number in 1_000..1_020 {
        querier.handle(any("10.0.0.7", &group(number)), at(1));
        querier.handle(report_of("10.0.0.8", &group(number + 100), sources(64)), at(1));
    }
    let counts = querier.take_limit_counts();
    assert_eq!((counts.ignored, counts.evicted), (0, 20 + 20 * 64));
    let joined = wanted(&mut querier);
    for number in (0..10).chain(1_000..1_020) {
        assert!(joined.contains(&group(number)), "{}", group(number));
    }
    for number in 1_100..1_120 {
        let prefix = format!("{} from ", group(number));
        let senders = joined.iter().filter(|membership| membership.starts_with(&prefix));
        assert_eq!(senders.count(), 64, "{prefix}");
    }
}
