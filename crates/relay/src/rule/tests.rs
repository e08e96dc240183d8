use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<Rule, RuleError> {
    text.parse()
}

#[test]
fn the_whole_language() {
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
fn is_written_as_it_is_read() {
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
fn says_what_is_wrong() {
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
            "'sixteen-bytes-ab' is no name of an interface",
        ),
        (
            "a/b 239.1.1.1:1 -> b 239.1.1.1:1",
            "'a/b' is no name of an interface",
        ),
        (
            "a 239.1.1.1 -> b 239.1.1.1:1",
            "'239.1.1.1' is not ADDRESS:PORT ([ADDRESS]:PORT for IPv6)",
        ),
        (
            "a ff02::1:5 -> b 239.1.1.1:1",
            "'ff02::1:5' is not ADDRESS:PORT ([ADDRESS]:PORT for IPv6)",
        ),
        (
            "a [239.1.1.1]:5 -> b 239.1.1.1:1",
            "'[239.1.1.1]:5' is not ADDRESS:PORT ([ADDRESS]:PORT for IPv6)",
        ),
        ("a 239.1.1:1 -> b 239.1.1.1:1", "'239.1.1' is no address"),
        (
            "a 239.1.1.1:0 -> b 239.1.1.1:1",
            "'0' is no port (1 to 65535, or *)",
        ),
        (
            "a 239.1.1.1:65536 -> b 239.1.1.1:1",
            "'65536' is no port (1 to 65535, or *)",
        ),
        ("a 239.1.1.1:1 -> b 239.1.1.1:1 ttl 0", "'0' is no TTL (1 to 255)"),
        (
            "a 239.1.1.1/24:1 -> b 239.1.1.1:1",
            "'239.1.1.1/24' has bits behind its prefix (try: 239.1.1.0/24)",
        ),
        (
            "a 10.0.0.0/8:1 -> b 239.1.1.1:1",
            "'10.0.0.0/8' is not a range of groups",
        ),
        (
            "a 192.0.0.0/2:1 -> b 239.1.1.1:1",
            "'192.0.0.0/2' is not a range of groups",
        ),
        (
            "a 10.0.0.1:* -> b 239.1.1.1:1",
            "10.0.0.1 is no group, so it needs a port",
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
            "239.1.1.1/32 cannot be a sender",
        ),
        (
            "a 239.1.1.1:1 from ::1 -> b 239.1.1.1:1",
            "::1/128 is of another family than the group",
        ),
        ("a 10.0.0.1:1 -> b *:1", "'*' keeps a group, and 10.0.0.1 is none"),
        (
            "a 239.1.1.1:1 -> b 239.1.1.1:1, b 239.1.1.1:1 ttl 8",
            "'b 239.1.1.1:1 ttl 8' is there twice",
        ),
        (
            "a 239.1.1.1:1 -> a 239.1.1.1:1",
            "'a 239.1.1.1:1' is where it comes from",
        ),
        ("a 239.1.1.1:1 -> a *:*", "'a *:*' is where it comes from"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert_eq!(error, reason, "{text}");
    }
}

#[test]
fn hops_go_down_or_are_set() {
    let set = Hops::Set(NonZeroU8::new(8).unwrap());
    let leaving = |hops: Hops, arrived| hops.leaving(arrived).map(NonZeroU8::get);
    assert_eq!(leaving(Hops::Decrement, 64), Some(63));
    assert_eq!(leaving(Hops::Decrement, 2), Some(1));
    assert_eq!(leaving(Hops::Decrement, 1), None);
    assert_eq!(leaving(Hops::Decrement, 0), None);
    assert_eq!((leaving(set, 1), leaving(set, 200)), (Some(8), Some(8)));
}

proptest! {
    /// No text makes it panic, and what is taken comes out as it went in.
    #[test]
    fn out_and_back(text in "(eth[0-9] )?[0-9a-f:./*\\[\\]]{0,20}( from 10.0.0.1)?( -> eth[0-9] [0-9.*]{1,9}:[0-9*]{1,3}( ttl [0-9]{1,3})?)?") {
        if let Ok(rule) = parse(&text) {
            prop_assert_eq!(parse(&rule.to_string()).unwrap(), rule);
        }
    }
}

#[test]
fn above_a_threshold_it_is_one_less() {
    let above = Hops::Above(NonZeroU8::new(64).unwrap());
    assert_eq!(above.leaving(65), NonZeroU8::new(64));
    assert_eq!((above.leaving(64), above.leaving(0)), (None, None));
}
