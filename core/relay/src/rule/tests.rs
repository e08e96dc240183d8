use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<Rule, RuleError> {
    text.parse()
}

#[test]
fn every_part_of_a_rule_is_parsed() {
    let rule =
        parse("eth0 239.1.1.1:5001 from 10.0.0.1 -> eth1 239.2.2.2:5002 ttl 8, eth2 10.1.2.3:5003").unwrap();
    let expected = Rule {
        input: Input {
            interface: "eth0".into(),
            to: "239.1.1.1/32".parse().unwrap(),
            port: NonZeroU16::new(5001),
            from: Some("10.0.0.1/32".parse().unwrap()),
        },
        outputs: vec![
            Output {
                interface: "eth1".into(),
                to: Some("239.2.2.2".parse().unwrap()),
                port: NonZeroU16::new(5002),
                hops: Hops::Set(NonZeroU8::new(8).unwrap()),
            },
            Output {
                interface: "eth2".into(),
                to: Some("10.1.2.3".parse().unwrap()),
                port: NonZeroU16::new(5003),
                hops: Hops::Decrement,
            },
        ],
    };
    assert_eq!(rule, expected);
}

#[test]
fn displayed_rule_is_the_text_that_was_parsed() {
    for text in [
        "eth0 239.1.1.1:5001 -> eth1 239.2.2.2:5002",
        "eth0 239.1.1.1:5001 from 10.0.0.0/8 -> eth0 239.1.1.2:5001 ttl 255",
        "eth0.5 239.1.0.0/16:* -> wlan0 *:*, eth2 *:9",
        "eth0 239.1.1.1:* -> eth1 *:* above 64",
        "a [ff3e::/96]:5001 from 2001:db8::1 -> b [ff3e::1]:1, c [fe80::7]:2 ttl 1",
        "a [ff02::fb]:5353 -> b 224.0.0.251:5353",
        "a 192.0.2.1:5003 -> b 239.1.1.1:5001",
    ] {
        assert_eq!(parse(text).unwrap().to_string(), text);
    }
    let spaced = parse("  eth0\t239.1.1.1:1->eth1   239.1.1.1:2 ,eth2 239.1.1.1:2 ").unwrap();
    assert_eq!(
        spaced.to_string(),
        "eth0 239.1.1.1:1 -> eth1 239.1.1.1:2, eth2 239.1.1.1:2"
    );
}

#[test]
fn error_names_the_reason() {
    for (text, reason) in [
        (
            "",
            "no '->' (the form is: eth0 239.1.1.1:5001 -> eth1 239.2.2.2:5002)",
        ),
        ("-> b 239.1.1.1:1", "the interface is missing"),
        ("a -> b 239.1.1.1:1", "the group is missing"),
        ("a 239.1.1.1:1 ->", "the interface is missing"),
        ("a 239.1.1.1:1 -> b", "the address to send to is missing"),
        ("a 239.1.1.1:1 -> b 239.1.1.1:1,", "the interface is missing"),
        ("a 239.1.1.1:1 from -> b 239.1.1.1:1", "the sender is missing"),
        ("a 239.1.1.1:1 -> b 239.1.1.1:1 ttl", "the TTL is missing"),
        (
            "a 239.1.1.1:1 form 10.0.0.1 -> b 239.1.1.1:1",
            "unexpected 'form'",
        ),
        ("a 239.1.1.1:1 -> b 239.1.1.1:1 ttl 8 9", "unexpected '9'"),
        (
            "a 239.1.1.1:1 -> b 239.1.1.1:1 -> c 239.1.1.1:1",
            "unexpected '->'",
        ),
        (
            "sixteen-bytes-ab 239.1.1.1:1 -> b 239.1.1.1:1",
            "invalid interface name 'sixteen-bytes-ab'",
        ),
        ("a/b 239.1.1.1:1 -> b 239.1.1.1:1", "invalid interface name 'a/b'"),
        (
            "a 239.1.1.1 -> b 239.1.1.1:1",
            "invalid endpoint '239.1.1.1' (ADDRESS:PORT; [ADDRESS]:PORT for IPv6)",
        ),
        (
            "a ff02::1:5 -> b 239.1.1.1:1",
            "invalid endpoint 'ff02::1:5' (ADDRESS:PORT; [ADDRESS]:PORT for IPv6)",
        ),
        (
            "a [239.1.1.1]:5 -> b 239.1.1.1:1",
            "invalid endpoint '[239.1.1.1]:5' (ADDRESS:PORT; [ADDRESS]:PORT for IPv6)",
        ),
        ("a 239.1.1:1 -> b 239.1.1.1:1", "invalid address '239.1.1'"),
        (
            "a 239.1.1.1:0 -> b 239.1.1.1:1",
            "invalid port '0' (1 to 65535, or *)",
        ),
        (
            "a 239.1.1.1:65536 -> b 239.1.1.1:1",
            "invalid port '65536' (1 to 65535, or *)",
        ),
        (
            "a 239.1.1.1:1 -> b 239.1.1.1:1 ttl 0",
            "invalid TTL '0' (1 to 255)",
        ),
        (
            "a 239.1.1.1/24:1 -> b 239.1.1.1:1",
            "'239.1.1.1/24' has bits set behind its prefix (try: 239.1.1.0/24)",
        ),
        (
            "a 10.0.0.0/8:1 -> b 239.1.1.1:1",
            "'10.0.0.0/8' is not a range of multicast groups",
        ),
        (
            "a 192.0.0.0/2:1 -> b 239.1.1.1:1",
            "'192.0.0.0/2' is not a range of multicast groups",
        ),
        (
            "a 10.0.0.1:* -> b 239.1.1.1:1",
            "10.0.0.1 is a unicast address, so it needs a port",
        ),
        (
            "a 255.255.255.255:9 -> b 239.1.1.1:1",
            "nothing can be sent to 255.255.255.255",
        ),
        ("a 239.1.1.1:1 -> b 0.0.0.0:1", "nothing can be sent to 0.0.0.0"),
        (
            "a 239.1.1.1:1 -> b [::ffff:10.0.0.1]:1",
            "nothing can be sent to ::ffff:10.0.0.1",
        ),
        (
            "a 239.1.1.1:1 from 239.1.1.1 -> b 239.1.1.1:1",
            "239.1.1.1/32 is not a range of unicast addresses",
        ),
        (
            "a 239.1.1.1:1 from ::1 -> b 239.1.1.1:1",
            "::1/128 and the group are of different address families",
        ),
        (
            "a 10.0.0.1:1 -> b *:1",
            "'*' keeps the destination address, but 10.0.0.1 is a unicast address of this host",
        ),
        (
            "a 239.1.1.1:1 -> b 239.1.1.1:1, b 239.1.1.1:1 ttl 8",
            "duplicate 'b 239.1.1.1:1 ttl 8'",
        ),
        (
            "a 239.1.1.1:1 -> a 239.1.1.1:1",
            "'a 239.1.1.1:1' is the same as the input",
        ),
        ("a 239.1.1.1:1 -> a *:*", "'a *:*' is the same as the input"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert_eq!(error, reason, "{text}");
    }
}

#[test]
fn hops_are_decremented_or_set() {
    let set = Hops::Set(NonZeroU8::new(8).unwrap());
    let leaving = |hops: Hops, arrived| hops.leaving(arrived).map(NonZeroU8::get);
    assert_eq!(leaving(Hops::Decrement, 64), Some(63));
    assert_eq!(leaving(Hops::Decrement, 2), Some(1));
    assert_eq!(leaving(Hops::Decrement, 1), None);
    assert_eq!(leaving(Hops::Decrement, 0), None);
    assert_eq!((leaving(set, 1), leaving(set, 200)), (Some(8), Some(8)));
}

proptest! {
    /// No text causes a panic, and the display of a parsed rule parses to the same rule.
    #[test]
    fn display_parses_to_the_same_rule(text in "(eth[0-9] )?[0-9a-f:./*\\[\\]]{0,20}( from 10.0.0.1)?( -> eth[0-9] [0-9.*]{1,9}:[0-9*]{1,3}( ttl [0-9]{1,3})?)?") {
        if let Ok(rule) = parse(&text) {
            prop_assert_eq!(parse(&rule.to_string()).unwrap(), rule);
        }
    }
}

#[test]
fn hops_above_a_threshold_are_decremented() {
    let above = Hops::Above(NonZeroU8::new(64).unwrap());
    assert_eq!(above.leaving(65), NonZeroU8::new(64));
    assert_eq!((above.leaving(64), above.leaving(0)), (None, None));
}
