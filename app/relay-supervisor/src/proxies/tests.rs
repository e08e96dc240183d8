use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pontoon_relay::membership::SourceFilter;

use super::super::counter_rows::FreeRows;
use super::super::links::LinkWatch;
use super::*;

/// Returns proxies without a worker, whose queriers have sockets that receive nothing.
fn proxies(text: &str) -> Proxies {
    let proxy: Proxy = text.parse().unwrap();
    let spawn_config = SpawnConfig::for_tests();
    let mut proxies = Proxies {
        proxies: vec![ProxyState {
            proxy: proxy.clone(),
            queriers: BTreeMap::new(),
            missing: BTreeSet::new(),
            failed: BTreeSet::new(),
        }],
        workers: WorkerPool::new(Task::Query { queriers: 2 }, 0, spawn_config).unwrap(),
        next_id: 0,
        changed: false,
        retry_at: None,
        retry_delay: Duration::ZERO,
    };
    for (id, name) in (1..).zip(proxy.downstream) {
        let address = IpAddr::from([10, 0, 0, 1]);
        let querier = ProxyQuerier {
            id,
            interface: 1,
            address,
            has_address: true,
            socket: Arc::new(UnixStream::pair().unwrap().0.into()),
            memberships: Memberships::new(false),
            unconfirmed: None,
        };
        proxies.proxies[0].queriers.insert((name, false), querier);
    }
    proxies
}

impl Proxies {
    fn set(&mut self, interface: &str, group: [u8; 4], filter: SourceFilter) {
        let key = (interface.to_owned(), false);
        let querier = self.proxies[0].queriers.get_mut(&key).unwrap();
        querier.memberships.set(group.into(), filter).unwrap();
    }
}

#[test]
fn interface_with_too_many_memberships_does_not_take_the_rows_of_others() {
    let mut proxies = proxies("up -> a, b");
    let sources: Vec<_> = (1..=4).map(|last| Ipv4Addr::new(10, 9, 9, last).into()).collect();
    proxies.set("a", [239, 9, 9, 9], SourceFilter::Any);
    for number in 0..4095_u16 {
        let [high, low] = number.to_be_bytes();
        let filter = SourceFilter::Sources(sources.clone());
        proxies.set("a", [239, 1, high, low], filter);
    }
    proxies.set("b", [239, 9, 9, 8], SourceFilter::Any);
    let rows = FreeRows::ALL;
    let (rules, left_out) = proxies.rules(rows);
    assert!(counter_rows::needed(&rules) <= rows && counter_rows::needed(&rules) > rows / 2);
    assert_eq!(rules.len() + left_out, 4095 * 4 + 2);
    let shown: Vec<_> = rules.iter().map(ToString::to_string).collect();
    for one in ["up 239.9.9.9:* -> a *:*", "up 239.9.9.8:* -> b *:*"] {
        assert!(shown.iter().any(|rule| rule == one), "{one}");
    }
    assert_eq!(proxies.rules(3), (Vec::new(), 4095 * 4 + 2));
}

#[test]
fn limit_is_the_greatest_whose_rules_fit_into_the_rows() {
    let mut proxies = proxies("up -> a, b, c");
    let sources = |count| {
        (1..=count)
            .map(|last| Ipv4Addr::new(10, 9, 9, last).into())
            .collect()
    };
    for (interface, group, filter) in [
        ("a", 1, SourceFilter::Sources(sources(3))),
        ("a", 2, SourceFilter::Any),
        ("a", 3, SourceFilter::Sources(sources(1))),
        ("b", 2, SourceFilter::Sources(sources(2))),
        ("b", 1, SourceFilter::Any),
        ("c", 3, SourceFilter::Any),
        ("c", 1, SourceFilter::Any),
        ("c", 2, SourceFilter::Sources(sources(4))),
    ] {
        proxies.set(interface, [239, 1, 1, group], filter);
    }
    let needed = |limit| counter_rows::needed(&proxies.rules_within(limit).0);
    for rows in 0..=needed(usize::MAX) {
        let limit = proxies.limit(rows);
        assert!(needed(limit) <= rows, "{rows} rows, limit {limit}");
        let is_greatest = limit == usize::MAX || needed(limit + 1) > rows;
        assert!(is_greatest, "{rows} rows, limit {limit}");
    }
}

#[test]
fn share_of_longest_lists_is_limited() {
    assert_eq!(greatest_share(vec![5, 1, 4], 10), usize::MAX);
    assert_eq!(greatest_share(vec![5, 1, 4], 9), 4);
    assert_eq!(greatest_share(vec![1 << 18, 3, 1 << 18], 31), 14);
    assert_eq!(greatest_share(vec![2, 2], 1), 0);
    assert_eq!(greatest_share(Vec::new(), 0), usize::MAX);
}

#[test]
fn querier_that_cannot_be_opened_is_retried_with_back_off() {
    let mut proxies = proxies("up -> lo");
    proxies.proxies[0].queriers.clear();
    let (_, links) = LinkWatch::start().unwrap();
    let mut removed = links.clone();
    removed.get_mut("lo").unwrap().index = u32::MAX >> 1;
    let mut now = Instant::now();
    proxies.update(&removed, now);
    let mut delays = Vec::new();
    for _ in 0..8 {
        let due = proxies.retry_deadline().unwrap();
        // A change of an interface neither causes nor delays the next attempt.
        proxies.update(&removed, now);
        assert_eq!(proxies.retry_deadline(), Some(due));
        delays.push((due - now).as_secs());
        now = due;
        proxies.retry(&removed, now);
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
    // Only a privileged process can open a packet socket.
    if packet::open_without_ring(links.get("lo").unwrap().index, Family::V4, |_| Ok(())).is_ok() {
        proxies.retry(&links, proxies.retry_deadline().unwrap());
        assert!(
            proxies.proxies[0]
                .queriers
                .contains_key(&("lo".to_owned(), false))
        );
        assert_eq!(proxies.retry_deadline(), None);
    }
    let mut down = links.clone();
    down.get_mut("lo").unwrap().up = false;
    proxies.update(&down, now);
    assert_eq!(proxies.retry_deadline(), None);
}

#[test]
fn memberships_are_kept_when_the_query_address_changes() {
    let mut proxies = proxies("up -> a");
    proxies.set("a", [239, 1, 1, 1], SourceFilter::Any);
    let querier = proxies.proxies[0].queriers.values_mut().next().unwrap();
    for address in [None, Some(IpAddr::from([10, 0, 0, 2]))] {
        querier.set_address(address, &mut proxies.workers);
        assert_eq!(querier.has_address, address.is_some());
    }
    assert_eq!(querier.address, IpAddr::from([10, 0, 0, 2]));
    assert_eq!(proxies.rules(FreeRows::ALL).0.len(), 1);
}

/// Makes the worker exit and its successor start `seconds` after `begin`. Returns the number of seconds for which the
/// successor keeps unconfirmed memberships; `None` if the supervisor has removed them.
fn restart(proxies: &mut Proxies, begin: Instant, seconds: u64) -> Option<u64> {
    let now = begin + Duration::from_secs(seconds);
    proxies
        .queriers_mut()
        .for_each(|querier| querier.on_worker_exit(now));
    proxies.expire(now);
    proxies.restore_worker(WORKER, now);
    let querier = proxies.proxies[0].queriers.values().next().unwrap();
    let expiry = querier.unconfirmed?.expiry.unwrap();
    Some((expiry - now).as_secs())
}

#[test]
fn memberships_of_a_worker_that_exits_repeatedly_expire_260_seconds_after_the_first_exit() {
    for interval in [1, 5, 10] {
        let mut proxies = proxies("up -> a");
        proxies.set("a", [239, 1, 1, 1], SourceFilter::Any);
        let begin = Instant::now();
        let mut removed = Vec::new();
        for seconds in (0..400).step_by(interval) {
            let kept = restart(&mut proxies, begin, seconds);
            if seconds < 260 {
                assert_eq!(kept, Some((260 - seconds).max(11)), "at {seconds}");
            }
            if proxies.take_changed() {
                removed.push(seconds);
            }
        }
        assert_eq!(removed, [260_u64.next_multiple_of(interval as u64)]);
        assert!(proxies.rules(FreeRows::ALL).0.is_empty());
    }
}

#[test]
fn worker_that_has_expired_unconfirmed_memberships_gives_its_successor_the_whole_interval() {
    let mut proxies = proxies("up -> a");
    proxies.set("a", [239, 1, 1, 1], SourceFilter::Any);
    let begin = Instant::now();
    assert_eq!(restart(&mut proxies, begin, 0), Some(260));
    assert_eq!(restart(&mut proxies, begin, 255), Some(11));
    // The second worker runs from 255 to 267, so memberships that it has not reported as expired at 266 have been confirmed
    // by hosts.
    assert_eq!(restart(&mut proxies, begin, 267), Some(260));
    assert_eq!(proxies.rules(FreeRows::ALL).0.len(), 1);
    assert!(!proxies.take_changed());
}

#[test]
fn missing_interface_is_noted_until_it_appears() {
    let mut proxies = proxies("lo -> nowhere");
    proxies.proxies[0].queriers.clear();
    let (_, mut links) = LinkWatch::start().unwrap();
    proxies.update(&links, Instant::now());
    assert_eq!(proxies.proxies[0].missing, BTreeSet::from(["nowhere".to_owned()]));
    links.add("nowhere", 0);
    links.get_mut("nowhere").unwrap().up = false;
    proxies.update(&links, Instant::now());
    assert!(proxies.proxies[0].missing.is_empty());
}
