//! Tests of each egress rule with packets that it matches and packets that it does not match.

use super::fixture::Fate;
use super::*;

/// Egress rules, and packets under these rules: protocol, destination, and whether the guest may reach it.
struct Row {
    rules: &'static [&'static str],
    packets: &'static [(EgressProtocol, &'static str, bool)],
}

const fn row(
    rules: &'static [&'static str],
    packets: &'static [(EgressProtocol, &'static str, bool)],
) -> Row {
    Row { rules, packets }
}

#[rustfmt::skip]
const TABLE: &[Row] = &[
    row(&[], &[
        (TCP, "192.0.2.1:22", true), (UDP, "192.0.2.1:53", true), (ICMP, "192.0.2.1", true),
        (TCP, "[2001:db8::1]:22", true), (UDP, "[2001:db8::1]:853", true), (ICMP, "2001:db8::1", true),
    ]),
    row(&["deny 192.0.2.0/24"], &[
        (TCP, "192.0.2.0:1", false), (UDP, "192.0.2.255:65535", false), (ICMP, "192.0.2.7", false),
        (TCP, "192.0.1.255:1", true), (UDP, "192.0.3.0:1", true), (ICMP, "192.0.3.0", true),
        (TCP, "[2001:db8::1]:1", true), (UDP, "[2001:db8::1]:1", true), (ICMP, "2001:db8::1", true),
    ]),
    row(&["deny 2001:db8::/32"], &[
        (TCP, "[2001:db8::1]:1", false), (UDP, "[2001:db8:ffff::1]:1", false), (ICMP, "2001:db8::1", false),
        (TCP, "[2001:db9::1]:1", true), (UDP, "[2001:db7::1]:1", true), (ICMP, "2001:db7::1", true),
        (TCP, "192.0.2.1:1", true),
    ]),
    // Rules with ports apply to TCP and UDP.
    row(&["deny 192.0.2.1:22-25"], &[
        (TCP, "192.0.2.1:21", true), (TCP, "192.0.2.1:22", false), (TCP, "192.0.2.1:25", false), (TCP, "192.0.2.1:26", true),
        (UDP, "192.0.2.1:22", false), (UDP, "192.0.2.1:26", true), (ICMP, "192.0.2.1", true),
    ]),
    row(&["deny *:25/tcp", "deny */icmp"], &[
        (TCP, "192.0.2.1:25", false), (TCP, "[2001:db8::1]:25", false), (TCP, "192.0.2.1:26", true),
        (UDP, "192.0.2.1:25", true), (UDP, "[2001:db8::1]:25", true),
        (ICMP, "192.0.2.1", false), (ICMP, "2001:db8::1", false),
    ]),
    row(&["deny 192.0.2.1/udp"], &[
        (UDP, "192.0.2.1:1", false), (TCP, "192.0.2.1:1", true), (ICMP, "192.0.2.1", true),
    ]),
    // With an allow rule, all other destinations are refused.
    row(&["allow 192.0.2.0/24:443/tcp", "allow 2001:db8::1"], &[
        (TCP, "192.0.2.9:443", true), (TCP, "192.0.2.9:80", false), (UDP, "192.0.2.9:443", false), (ICMP, "192.0.2.9", false),
        (TCP, "[2001:db8::1]:1", true), (UDP, "[2001:db8::1]:1", true), (ICMP, "2001:db8::1", true),
        (TCP, "[2001:db8::2]:1", false), (UDP, "[2001:db8::2]:1", false), (ICMP, "2001:db8::2", false),
        (TCP, "198.51.100.1:443", false), (UDP, "198.51.100.1:53", false),
    ]),
    // Deny rules take precedence at any position.
    row(&["allow 192.0.2.7", "deny 192.0.2.0/24", "allow *"], &[
        (TCP, "192.0.2.7:1", false), (UDP, "192.0.2.7:1", false), (ICMP, "192.0.2.7", false),
        (TCP, "198.51.100.1:1", true), (UDP, "[2001:db8::1]:1", true), (ICMP, "198.51.100.1", true),
    ]),
    row(&["deny *"], &[
        (TCP, "192.0.2.1:1", false), (UDP, "192.0.2.1:53", false), (ICMP, "192.0.2.1", false),
        (TCP, "[2001:db8::1]:1", false), (UDP, "[2001:db8::1]:1", false), (ICMP, "2001:db8::1", false),
    ]),
    // A rule that denies an IPv4 address also denies its translated forms; a rule that allows it does not allow them.
    row(&["deny 192.0.2.0/24"], &[
        (TCP, "[64:ff9b::c000:201]:1", false), (UDP, "[64:ff9b::c000:201]:1", false), (ICMP, "64:ff9b::c000:201", false),
        (TCP, "[2002:c000:201::1]:1", false), (UDP, "[64:ff9b:1::c000:201]:1", false),
        (ICMP, "64:ff9b:1:c000:2:100::", false),
        (TCP, "[64:ff9b::c633:6401]:1", true), (TCP, "[2002:c633:6401::1]:1", true),
    ]),
    row(&["allow 192.0.2.0/24"], &[
        (TCP, "192.0.2.1:1", true), (TCP, "[64:ff9b::c000:201]:1", false), (UDP, "[2002:c000:201::1]:1", false),
    ]),
    row(&["allow 64:ff9b::/96", "deny 192.0.2.1"], &[
        (TCP, "[64:ff9b::c000:202]:1", true), (TCP, "[64:ff9b::c000:201]:1", false),
    ]),
    // Rules that name domains refuse other resolvers, whatever else they allow.
    row(&["deny ads.example", "allow *"], &[
        (TCP, "192.0.2.1:53", false), (UDP, "192.0.2.1:53", false), (TCP, "192.0.2.1:853", false), (UDP, "192.0.2.1:853", false),
        (TCP, "[2001:db8::1]:53", false), (UDP, "[2001:db8::1]:853", false), (TCP, "10.0.2.3:53", false),
        (TCP, "192.0.2.1:443", true), (UDP, "192.0.2.1:443", true), (ICMP, "192.0.2.1", true),
    ]),
];

#[test]
fn rules_decide_about_packets() {
    for Row { rules, packets } in TABLE {
        for &(protocol, to, may) in *packets {
            let mut fixture = Fixture::new(rules);
            let fate = fixture.send(protocol, to);
            let context = format!("{rules:?}: {protocol} {to}: {fate:?}");
            match fate {
                Fate::Out(calls) => {
                    assert!(may && !calls.is_empty(), "{context}");
                    assert!(fixture.news().is_empty(), "{context}");
                }
                Fate::Replied(line) => {
                    assert!(!may, "{context}");
                    let icmp = if addr(to).is_ipv4() { " 3/13 " } else { " 1/1 " };
                    let matches = match protocol {
                        EgressProtocol::Tcp => {
                            line.starts_with(&format!("tcp {to} >")) && line.ends_with(" reset")
                        }
                        EgressProtocol::Udp | EgressProtocol::Icmp => {
                            line.starts_with("icmp ") && line.contains(icmp)
                        }
                    };
                    assert!(matches, "{context}");
                    let mut moved = fixture.moved();
                    moved.retain(|(name, _)| *name != "icmp_errors_down");
                    let refused = [("frames_up", 1), ("frames_down", 1), ("policy_refused", 1)];
                    assert_eq!(moved, refused, "{context}");
                    assert_eq!(
                        (fixture.news().len(), fixture.engine.flows()),
                        (1, 0),
                        "{context}"
                    );
                }
            }
        }
    }
}

#[test]
fn rules_match_both_addresses_of_the_hosts_loopback() {
    for (rules, may) in [
        (&["deny 10.0.2.2"][..], false),
        (&["deny 127.0.0.0/8"], false),
        (&["deny 127.0.0.1:5432"], true),
        (&["allow 10.0.2.2:80"], true),
        (&["allow 127.0.0.1:80"], true),
        (&["allow 127.0.0.1:81"], false),
    ] {
        let mut config = crate::test_world::net().config;
        config.host_loopback = vec!["10.0.2.2".parse().unwrap()];
        config.egress.set(&super::rules(rules));
        let mut fixture = Fixture::with_config(config);
        let fate = fixture.send(TCP, "10.0.2.2:80");
        assert_eq!(
            fate == Fate::Out(vec!["0: tcp 127.0.0.1:80".to_owned()]),
            may,
            "{rules:?}: {fate:?}"
        );
    }
}

#[test]
fn no_rule_allows_addresses_that_are_always_refused() {
    let mut fixture = Fixture::new(&[
        "allow *",
        "allow 127.0.0.1",
        "allow 192.168.7.1",
        "allow 169.254.169.254",
    ]);
    for to in [
        "127.0.0.1:80",
        "169.254.169.254:80",
        "10.0.2.2:80",
        "192.168.7.1:80",
        "[::1]:80",
    ] {
        assert!(matches!(fixture.send(TCP, to), Fate::Replied(_)), "{to}");
    }
}

#[test]
fn forwarder_answers_in_spite_of_the_rules() {
    let mut fixture = Fixture::new(&["deny *"]);
    fixture.resolve("example.org", 1, |_| ());
}

#[test]
fn rules_apply_to_each_port_of_a_known_peer() {
    let mut fixture = Fixture::new(&["deny 192.0.2.1:22"]);
    assert!(matches!(fixture.send(UDP, "192.0.2.1:7"), Fate::Out(_)));
    assert!(matches!(fixture.send(UDP, "192.0.2.1:22"), Fate::Replied(_)));
    assert!(matches!(fixture.send(UDP, "192.0.2.1:7"), Fate::Out(_)));
}

#[test]
fn each_rule_counts_and_reports_once_a_second() {
    let mut fixture = Fixture::new(&["allow 192.0.2.0/24", "deny 192.0.2.1", "deny *:25/tcp"]);
    for to in [
        "192.0.2.1:80",
        "192.0.2.1:81",
        "192.0.2.2:25",
        "198.51.100.1:80",
        "192.0.2.3:80",
    ] {
        fixture.send(TCP, to);
    }
    assert_eq!(
        fixture.news(),
        [
            "refused tcp to 192.0.2.1:80: deny 192.0.2.1",
            "refused tcp to 192.0.2.2:25: deny *:25/tcp",
            "refused tcp to 198.51.100.1:80: no rule allows it",
        ]
    );
    fixture.wait(Duration::from_millis(999));
    fixture.send(ICMP, "192.0.2.1");
    assert!(fixture.news().is_empty());
    fixture.wait(Duration::from_millis(1));
    fixture.send(ICMP, "192.0.2.1");
    assert_eq!(
        fixture.news(),
        ["refused icmp to 192.0.2.1: deny 192.0.2.1 (3 times)"]
    );
    let counts = [
        ("allow 192.0.2.0/24", 1),
        ("deny 192.0.2.1", 4),
        ("deny *:25/tcp", 1),
        ("no rule allows it", 1),
    ];
    assert_eq!(
        fixture.counts(),
        counts.map(|(rule, hits)| (rule.to_owned(), hits))
    );
}
