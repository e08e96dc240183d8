//! Tests of rules that name domains: which addresses of a DNS response they match.

use core::net::Ipv4Addr;

use super::fixture::{Answer, Fate};
use super::*;
use crate::{Egress, Instant};

const SITE: &str = "198.51.100.7:443";
const SITE_V6: &str = "[2001:db8:5::7]:443";

fn may(fixture: &mut Fixture, to: &str) -> bool {
    [TCP, UDP, ICMP]
        .map(|protocol| matches!(fixture.send(protocol, to), Fate::Out(_)))
        .into_iter()
        .reduce(|a, b| {
            assert_eq!(a, b, "{to}: all protocols alike");
            a
        })
        .unwrap()
}

/// Returns a fixture whose guest has queried a name. Each record of the response has owner, TTL, and an address or
/// alias.
fn with_records(rules: &[&str], name: &str, records: &[(&str, u32, &str)]) -> Fixture {
    let mut fixture = Fixture::new(rules);
    fixture.resolve(name, 1, |answer| {
        for &(owner, ttl, data) in records {
            match data.parse::<core::net::IpAddr>() {
                Ok(_) => answer.address(owner, ttl, data),
                Err(_) => answer.alias(owner, data),
            };
        }
    });
    fixture
}

#[test]
fn addresses_of_an_allowed_name_are_reachable() {
    let mut fixture = Fixture::new(&["allow example.org"]);
    assert!(!may(&mut fixture, SITE));
    fixture.resolve("eXample.ORG", 1, |answer| {
        answer.address("example.org", 300, "198.51.100.7");
    });
    assert!(may(&mut fixture, SITE));
    assert!(!may(&mut fixture, SITE_V6) && !may(&mut fixture, "198.51.100.8:443"));
    fixture.resolve("example.org", 28, |answer| {
        answer.address("example.org", 300, "2001:db8:5::7");
    });
    assert!(may(&mut fixture, SITE_V6));
}

#[test]
fn addresses_of_a_denied_name_are_refused() {
    let mut fixture = Fixture::new(&["deny *.ads.example"]);
    assert!(may(&mut fixture, SITE));
    fixture.resolve("x.ads.example", 1, |answer| {
        answer.address("x.ads.example", 300, "198.51.100.7");
    });
    // Existing flows are not closed.
    assert!(matches!(fixture.send(UDP, "198.51.100.9:1"), Fate::Out(_)));
    assert!(matches!(fixture.send_from(4001, TCP, SITE), Fate::Replied(_)));
    assert!(matches!(fixture.send_from(4001, UDP, SITE), Fate::Replied(_)));
    assert!(matches!(fixture.send(ICMP, SITE), Fate::Replied(_)));
}

#[test]
fn rule_with_name_and_port_allows_only_that_port() {
    let site = [("example.org", 300, "198.51.100.7")];
    let mut fixture = with_records(&["allow example.org:443/tcp"], "example.org", &site);
    assert!(matches!(fixture.send(TCP, SITE), Fate::Out(_)));
    assert!(matches!(fixture.send(UDP, SITE), Fate::Replied(_)));
    assert!(matches!(fixture.send(TCP, "198.51.100.7:80"), Fate::Replied(_)));
}

#[test]
fn aliases_are_followed_only_from_the_question() {
    let chain = [
        ("www.example.org", 1, "edge.cdn.example"),
        ("edge.cdn.example", 1, "a.cdn.example"),
        ("a.cdn.example", 1, "198.51.100.7"),
        ("other.example", 1, "198.51.100.8"),
    ];
    let asked = "www.example.org";
    let mut allowed = with_records(&["allow www.example.org"], asked, &chain);
    assert!(may(&mut allowed, SITE));
    assert!(
        !may(&mut allowed, "198.51.100.8:443"),
        "the query was for another name"
    );
    // An allow rule for the target of an alias does not match the queried name,
    assert!(!may(
        &mut with_records(&["allow edge.cdn.example"], asked, &chain),
        SITE
    ));
    // but a deny rule also matches a name behind an alias.
    assert!(!may(
        &mut with_records(&["deny edge.cdn.example"], asked, &chain),
        SITE
    ));
    // A deny rule matches a name in any record, but not the addresses of other names.
    let mut denied = with_records(&["deny other.example"], asked, &chain);
    assert!(!may(&mut denied, "198.51.100.8:443") && may(&mut denied, SITE));
}

#[test]
fn service_hints_are_addresses_of_the_name() {
    let reachable = |rule: &str, asked: &str, write: fn(&mut Answer)| {
        let mut fixture = Fixture::new(&[rule]);
        fixture.resolve(asked, 65, write);
        [may(&mut fixture, SITE), may(&mut fixture, SITE_V6)]
    };
    let own = |answer: &mut Answer| {
        answer.https("example.org", 1, "", &["198.51.100.7", "2001:db8:5::7"]);
    };
    assert_eq!(reachable("allow example.org", "example.org", own), [true; 2]);
    assert_eq!(reachable("deny example.org", "example.org", own), [false; 2]);
    assert_eq!(reachable("deny example.net", "example.org", own), [true; 2]);
    // The hints of a record with another target belong to the target: a rule that allows one name does not allow the
    // other.
    let elsewhere = |answer: &mut Answer| {
        answer.https(
            "example.org",
            1,
            "cdn.example",
            &["198.51.100.7", "2001:db8:5::7"],
        );
    };
    assert_eq!(
        reachable("allow example.org", "example.org", elsewhere),
        [false; 2]
    );
    assert_eq!(
        reachable("allow cdn.example", "example.org", elsewhere),
        [false; 2]
    );
    assert_eq!(
        reachable("deny example.org", "example.org", elsewhere),
        [false; 2]
    );
    assert_eq!(
        reachable("deny cdn.example", "example.org", elsewhere),
        [false; 2]
    );
    // CNAME and HTTPS aliases.
    let aliases = |answer: &mut Answer| {
        answer.alias("www.example.org", "example.org");
        answer.https("example.org", 0, "pool.example", &[]);
        answer.https("pool.example", 1, "", &["198.51.100.7", "2001:db8:5::7"]);
    };
    for denied in ["www.example.org", "example.org", "pool.example"] {
        assert_eq!(
            reachable(&format!("deny {denied}"), "www.example.org", aliases),
            [false; 2],
            "{denied}"
        );
    }
    let alias = |answer: &mut Answer| {
        answer.alias("www.example.org", "example.org");
        answer.https("example.org", 1, "", &["198.51.100.7", "2001:db8:5::7"]);
    };
    assert_eq!(
        reachable("allow www.example.org", "www.example.org", alias),
        [true; 2]
    );
    // A service at another port, and a service with IPv6 hints only.
    let port = |answer: &mut Answer| {
        answer.https("_8443._https.example.org", 1, "", &["2001:db8:5::7"]);
    };
    assert_eq!(
        reachable("deny example.org", "_8443._https.example.org", port),
        [true, false]
    );
}

#[test]
fn additional_records_count_for_their_owner_names() {
    let reachable = |rule: &str, write: fn(&mut Answer)| {
        let mut fixture = Fixture::new(&[rule]);
        fixture.resolve("example.org", 15, write);
        [may(&mut fixture, SITE), may(&mut fixture, "198.51.100.8:443")]
    };
    let mail = |answer: &mut Answer| {
        answer
            .mail("example.org", "mx.example.org")
            .address("mx.example.org", 300, "198.51.100.7")
            .address("example.org", 300, "198.51.100.8")
            .beside(2);
    };
    assert_eq!(reachable("deny *.example.org", mail), [false, true]);
    assert_eq!(reachable("deny mx.example.org", mail), [false, true]);
    assert_eq!(reachable("deny example.org", mail), [true, false]);
    assert_eq!(reachable("allow example.org", mail), [false, true]);
    assert_eq!(reachable("allow *.example.org", mail), [false, false]);
}

#[test]
fn alias_loop_ends() {
    let circle = [
        ("a.example", 1, "b.example"),
        ("b.example", 1, "a.example"),
        ("b.example", 1, "198.51.100.7"),
    ];
    assert!(may(
        &mut with_records(&["allow a.example"], "a.example", &circle),
        SITE
    ));
}

#[test]
fn name_that_resolves_to_a_denied_address_is_refused() {
    let rebound = |address: &'static str| [("evil.example", 60, address)];
    let rules = &["allow evil.example", "deny 10.0.0.0/8", "deny fd00::/8"];
    for (address, to) in [
        ("10.1.2.3", "10.1.2.3:80"),
        ("fd12::1", "[fd12::1]:80"),
        ("64:ff9b::a01:203", "[64:ff9b::a01:203]:80"),
        // These are refused under any rules: the host's own address, its loopback, a metadata service.
        ("192.168.7.1", "192.168.7.1:80"),
        ("127.0.0.1", "127.0.0.1:80"),
        ("169.254.169.254", "169.254.169.254:80"),
        ("::1", "[::1]:80"),
        ("10.0.2.2", "10.0.2.2:80"),
    ] {
        let mut fixture = with_records(rules, "evil.example", &rebound(address));
        assert!(matches!(fixture.send(TCP, to), Fate::Replied(_)), "{to}");
        assert!(matches!(fixture.send(UDP, to), Fate::Replied(_)), "{to}");
    }
    assert!(may(
        &mut with_records(rules, "evil.example", &rebound("198.51.100.7")),
        SITE
    ));
}

#[test]
fn error_and_malformed_responses_add_no_addresses() {
    let mut fixture = Fixture::new(&["allow example.org"]);
    fixture.resolve("example.org", 1, |answer| {
        answer.address("example.org", 300, "198.51.100.7").failed();
    });
    assert!(!may(&mut fixture, SITE));
    // Records that the header counts but that are truncated.
    fixture.resolve("example.org", 1, |answer| {
        answer.address("example.org", 300, "198.51.100.7");
        let len = answer.0.len();
        answer.0.truncate(len - 1);
    });
    assert!(!may(&mut fixture, SITE));
    // A service record whose hints are truncated is ignored; the next record is not.
    let mut fixture = Fixture::new(&["allow example.org", "deny cut.example"]);
    fixture.resolve("example.org", 65, |answer| {
        answer.https("cut.example", 1, "", &["198.51.100.7"]);
        let value = answer.0.len() - 5;
        answer.0[value] += 1;
        answer.https("example.org", 1, "", &["198.51.100.7"]);
    });
    assert!(may(&mut fixture, SITE));
    // An octet in a label that no rule can contain does not match a dot.
    let mut fixture = Fixture::new(&["allow *.example.org"]);
    fixture.resolve("a", 1, |answer| {
        answer.address("a", 300, "198.51.100.7");
    });
    assert!(!may(&mut fixture, SITE));
}

#[test]
fn address_expires_after_its_ttl_or_thirty_seconds() {
    for (ttl, known) in [
        (0, 30),
        (29, 30),
        (31, 31),
        (3_600, 3_600),
        (u32::MAX >> 1, 86_400),
    ] {
        let site = [("example.org", ttl, "198.51.100.7")];
        for (after, may) in [(known, true), (known + 1, false)] {
            let mut fixture = with_records(&["allow example.org"], "example.org", &site);
            fixture.wait(Duration::from_secs(after));
            assert_eq!(
                matches!(fixture.send(TCP, SITE), Fate::Out(_)),
                may,
                "TTL {ttl} after {after} s"
            );
        }
    }
}

#[test]
fn denied_address_expires_after_a_day() {
    for ttl in [0, 3_600, u32::MAX >> 1] {
        let site = [("example.org", ttl, "198.51.100.7")];
        for (after, is_closed) in [(32, true), (86_400, true), (86_401, false)] {
            let mut fixture = with_records(&["deny example.org"], "example.org", &site);
            fixture.wait(Duration::from_secs(after));
            assert_eq!(
                matches!(fixture.send(TCP, SITE), Fate::Replied(_)),
                is_closed,
                "TTL {ttl} after {after} s"
            );
        }
    }
}

#[test]
fn address_with_a_flow_does_not_expire() {
    for protocol in [TCP, UDP] {
        let site = [
            ("example.org", 1, "198.51.100.7"),
            ("example.org", 1, "198.51.100.8"),
        ];
        let mut fixture = with_records(&["allow example.org"], "example.org", &site);
        assert!(matches!(fixture.send(protocol, SITE), Fate::Out(_)));
        // The flow continues: TCP's connect is pending, and UDP's endpoint is used every 25 s.
        for _ in 0..40 {
            fixture.wait(Duration::from_secs(25));
            assert!(matches!(fixture.send(protocol, SITE), Fate::Out(_)));
        }
        assert!(
            matches!(fixture.send_from(4002, TCP, SITE), Fate::Out(_)),
            "{protocol}: a second flow"
        );
        assert!(
            matches!(fixture.send(TCP, "198.51.100.8:443"), Fate::Replied(_)),
            "{protocol}: the other one"
        );
    }
}

#[test]
fn address_with_an_echo_id_does_not_expire_and_needs_no_timer() {
    let site = [("example.org", 1, "198.51.100.7")];
    let mut fixture = with_records(&["allow example.org"], "example.org", &site);
    for _ in 0..10 {
        assert!(matches!(fixture.send(ICMP, "198.51.100.7"), Fate::Out(_)));
        fixture.wait(Duration::from_secs(60));
    }
    fixture.wait(Duration::from_secs(65));
    assert!(matches!(fixture.send(ICMP, "198.51.100.7"), Fate::Replied(_)));
    fixture.wait(Duration::from_secs(65));
    assert_eq!(fixture.engine.next_timeout(), None);
}

#[test]
fn addresses_of_one_name_are_limited() {
    let mut fixture = Fixture::new(&["deny many.example", "deny other.example"]);
    fixture.resolve("other.example", 1, |answer| {
        answer.address("other.example", 30, "203.0.113.1");
    });
    // 130 responses with 8 addresses each; the latest addresses are kept, even with a short TTL.
    for round in 0..130_u32 {
        fixture.wait(Duration::from_millis(1));
        fixture.resolve("many.example", 1, |answer| {
            for place in 0..8 {
                let [_, _, high, low] = (round * 8 + place).to_be_bytes();
                answer.address("many.example", 1_000 - round, &format!("198.18.{high}.{low}"));
            }
        });
    }
    assert!(
        matches!(fixture.send(TCP, "198.18.0.0:1"), Fate::Out(_)),
        "the first address is evicted"
    );
    assert!(
        matches!(fixture.send(TCP, "198.18.4.15:1"), Fate::Replied(_)),
        "the latest address is kept"
    );
    assert!(
        matches!(fixture.send(TCP, "203.0.113.1:1"), Fate::Replied(_)),
        "another name's"
    );
}

#[test]
fn names_in_one_response_are_limited() {
    let mut fixture = Fixture::new(&["deny *.example"]);
    fixture.resolve("asked.example", 1, |answer| {
        // The queried name and 63 more names.
        for place in 1..=64 {
            answer.address(&format!("n{place}.example"), 300, &format!("198.18.0.{place}"));
        }
    });
    assert!(!may(&mut fixture, "198.18.0.63:1") && may(&mut fixture, "198.18.0.64:1"));
    // The limit also applies if each name is an alias of the next one.
    let mut fixture = Fixture::new(&["deny n0.example"]);
    fixture.resolve("asked.example", 1, |answer| {
        for place in (1..60).rev() {
            answer.alias(&format!("n{}.example", place - 1), &format!("n{place}.example"));
        }
        answer.address("n59.example", 300, "198.51.100.7");
    });
    assert!(!may(&mut fixture, SITE));
}

#[test]
fn workers_share_learned_addresses() {
    let site = [("example.org", 60, "198.51.100.7")];
    let mut config = crate::test_world::net().config;
    config.egress.set(&rules(&["allow example.org"]));
    let (mut first, mut second) = (
        Fixture::with_config(config.clone()),
        Fixture::with_config(config.clone()),
    );
    first.resolve("example.org", 1, |answer| {
        let (owner, ttl, address) = site[0];
        answer.address(owner, ttl, address);
    });
    assert!(may(&mut second, SITE));
    // A flow of one worker keeps the address known in all workers.
    let mut third = Fixture::with_config(config);
    for _ in 0..10 {
        second.wait(Duration::from_secs(50));
    }
    third.now = second.now;
    assert!(matches!(third.send(TCP, SITE), Fate::Out(_)));
}

proptest::proptest! {
    #[test]
    fn random_responses_never_panic(flips in proptest::collection::vec((proptest::num::usize::ANY, proptest::num::u8::ANY), 0..8)) {
        let mut fixture = Fixture::new(&["allow example.org", "deny *.example"]);
        fixture.resolve("example.org", 65, |answer| {
            let question = answer.0.len();
            answer
                .alias("example.org", "a.example")
                .https("a.example", 1, "b.example", &["198.51.100.7", "2001:db8:5::7"])
                .https("a.example", 0, "", &[])
                .address("b.example", 300, "198.51.100.8")
                .beside(1);
            for (place, value) in flips {
                let records = &mut answer.0[question..];
                let place = place % records.len();
                records[place] = value;
            }
        });
    }
}

/// Tests that the sweep does not compare each flow with each rule: 131 million comparisons take several seconds, and the
/// worker handles nothing else meanwhile.
#[test]
#[expect(clippy::disallowed_methods, reason = "the computing time is measured")]
fn learned_addresses_of_many_flows_and_rules_are_renewed_quickly() {
    let lines: Vec<String> = (0..1_000).map(|n| format!("allow n{n}.example")).collect();
    let mut egress = Egress::new(&rules(&lines.iter().map(String::as_str).collect::<Vec<_>>()));
    let flows: Vec<core::net::IpAddr> = (0..131_072_u32)
        .map(|n| Ipv4Addr::from(0xc633_6400 + n).into())
        .collect();
    let began = std::time::Instant::now();
    egress.keep(&flows, false, Instant(0));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(egress.next_sweep(), None);
}
