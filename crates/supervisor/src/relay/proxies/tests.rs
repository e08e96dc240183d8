use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;

use pontoon_relay::membership::message::{Message, Record, SourceChange};

use super::*;

/// A proxy whose ears hear nothing by themselves.
fn proxies(text: &str) -> Proxies {
    let proxy: Proxy = text.parse().unwrap();
    let mut proxies = Proxies::new(std::slice::from_ref(&proxy));
    for name in proxy.downstream {
        let own = IpAddr::from([10, 0, 0, 1]);
        let ear = Ear {
            index: 1,
            own: Some(own),
            socket: UnixStream::pair().unwrap().0.into(),
            querier: Querier::new(own, Duration::ZERO),
        };
        proxies.proxies[0].ears.insert((name, false), ear);
    }
    proxies
}

impl Proxies {
    fn handle(&mut self, behind: &str, group: [u8; 4], change: SourceChange) {
        let now = self.now();
        let ear = self.proxies[0].ears.get_mut(&(behind.to_owned(), false)).unwrap();
        let group = IpAddr::from(group);
        ear.querier
            .handle(Message::Reports(vec![Record { group, change }]), now);
    }
}

#[test]
fn one_who_wants_too_much_leaves_others_what_they_want() {
    let mut proxies = proxies("up -> a, b");
    let sources: Vec<_> = (1..=4).map(|last| Ipv4Addr::new(10, 9, 9, last).into()).collect();
    proxies.handle("a", [239, 9, 9, 9], SourceChange::Any);
    for number in 0..4096_u16 {
        let [high, low] = number.to_be_bytes();
        let sources = sources.clone();
        proxies.handle(
            "a",
            [239, 1, high, low],
            SourceChange::Include {
                sources,
                exclusive: true,
            },
        );
    }
    proxies.handle("b", [239, 9, 9, 8], SourceChange::Any);
    let room = counter_rows::FreeRows::ALL;
    let (rules, left_out) = proxies.turn(room);
    assert!(counter_rows::needed(&rules) <= room && counter_rows::needed(&rules) > room / 2);
    assert_eq!(rules.len() + left_out, 4095 * 4 + 2);
    let shown: Vec<_> = rules.iter().map(ToString::to_string).collect();
    for one in ["up 239.9.9.9:* -> a *:*", "up 239.9.9.8:* -> b *:*"] {
        assert!(shown.iter().any(|rule| rule == one), "{one}");
    }
    assert_eq!(proxies.turn(3), (Vec::new(), 4095 * 4 + 2));
}

#[test]
fn hosts_are_remembered_when_an_address_changes() {
    let mut proxies = proxies("up -> a");
    proxies.handle("a", [239, 1, 1, 1], SourceChange::Any);
    let now = proxies.now();
    let ear = proxies.proxies[0].ears.values_mut().next().unwrap();
    for own in [None, Some(IpAddr::from([10, 0, 0, 2]))] {
        ear.ask_from(own, now);
    }
    assert_eq!(ear.querier.next_tick(), now, "they are asked");
    assert_eq!(proxies.turn(counter_rows::FreeRows::ALL).0.len(), 1);
}

#[test]
fn an_interface_that_is_not_there_is_missed_once() {
    let mut proxies = Proxies::new(&["lo -> nowhere".parse().unwrap()]);
    let (_, mut links) = super::super::links::LinkWatch::start().unwrap();
    proxies.update(&links);
    assert_eq!(proxies.proxies[0].missing, BTreeSet::from(["nowhere".to_owned()]));
    links.add("nowhere", 0);
    links.get_mut("nowhere").unwrap().up = false;
    proxies.update(&links);
    assert!(proxies.proxies[0].missing.is_empty());
}
