use core::str::FromStr as _;

use proptest::prelude::*;

use super::*;
use crate::egress::{Match, Part, Pattern, Proof, Target};

#[test]
fn egress_rules_are_parsed() {
    for (text, shown) in [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1/32", "192.0.2.1"),
        ("192.0.2.1:22", "192.0.2.1:22"),
        ("192.0.2.0/24:22-25/tcp", "192.0.2.0/24:22-25/tcp"),
        ("192.0.2.0/24:22-22/udp", "192.0.2.0/24:22/udp"),
        ("192.0.2.0/24/icmp", "192.0.2.0/24/icmp"),
        ("2001:db8::1", "2001:db8::1"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("2001:db8::/32/udp", "2001:db8::/32/udp"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"),
        ("[2001:db8::/32]:443/tcp", "[2001:db8::/32]:443/tcp"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7/128", "192.0.2.7"),
        ("[::ffff:192.0.2.0/120]:80/tcp", "192.0.2.0/24:80/tcp"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::ffff:0:0/95", "::fffe:0:0/95"),
        ("::192.0.2.7", "::c000:207"),
        ("Example.ORG.", "example.org"),
        ("example.org:443/tcp", "example.org:443/tcp"),
        ("*.example.org", "*.example.org"),
        ("_srv.example-1.org:1-65535", "_srv.example-1.org:1-65535"),
        ("*", "*"),
        ("*:25/tcp", "*:25/tcp"),
        ("*/icmp", "*/icmp"),
    ] {
        let parsed: Match = text.parse().unwrap();
        assert_eq!(parsed.to_string(), shown);
        assert_eq!(shown.parse(), Ok(parsed));
    }
}

#[test]
fn each_syntax_error_has_its_own_message() {
    for (text, why) in [
        ("", "'' is neither a network, an address nor a domain"),
        ("10.0.0", "'10.0.0' is neither a network, an address nor a domain"),
        (
            "10.0.0.0/33",
            "'10.0.0.0/33' is neither a network, an address nor a domain",
        ),
        (
            "exa mple.org",
            "'exa mple.org' is neither a network, an address nor a domain",
        ),
        (
            "*.*.org",
            "'*.*.org' is neither a network, an address nor a domain",
        ),
        ("a..org", "'a..org' is neither a network, an address nor a domain"),
        (
            "a.org/sctp",
            "'a.org/sctp' is neither a network, an address nor a domain",
        ),
        ("a.org:0", "'0' is not a port (1 to 65535)"),
        ("a.org:http", "'http' is not a port (1 to 65535)"),
        ("a.org:65536", "'65536' is not a port (1 to 65535)"),
        ("a.org:9-8", "'9-8' ends before it begins"),
        ("a.org:9/icmp", "ICMP has no ports"),
        ("a.org/tls", "'/tls' needs a domain and a port"),
        ("*:443/tls", "'/tls' needs a domain and a port"),
        (
            "192.0.2.1:443/tls-strict",
            "'/tls-strict' needs a domain and a port",
        ),
        ("a.org:443/TLS", "'443/TLS' is not a port (1 to 65535)"),
        ("[::1:9", "a bracket is not closed"),
        ("[10.0.0.1]:9", "'[10.0.0.1]:9' is not [IPV6]:PORTS"),
        ("[::1]9", "'[::1]9' is not [IPV6]:PORTS"),
        ("::1:x", "'::1:x': an IPv6 address with ports goes in brackets"),
        (
            "2001:db8::/32:443",
            "'2001:db8::/32:443': an IPv6 address with ports goes in brackets",
        ),
    ] {
        assert_eq!(text.parse::<Match>(), Err(why.to_owned()), "{text}");
    }
    assert!("permit *".parse::<EgressRule>().is_err());
    assert!("allow".parse::<EgressRule>().is_err());
}

#[test]
fn deny_rule_that_requires_proof_is_not_accepted() {
    for text in ["deny a.org:443/tls", "deny a.org:443/tls-strict"] {
        let why = format!("'{text}': a deny rule requires no proof");
        assert_eq!(text.parse::<EgressRule>(), Err(why));
    }
}

#[test]
fn required_proof_is_parsed() {
    for (text, shown, proof) in [
        ("Example.org:443/tls", "example.org:443/tls", Proof::Tls),
        (
            "*.example.org:443-445/tls-strict",
            "*.example.org:443-445/tls-strict",
            Proof::TlsStrict,
        ),
    ] {
        let to = Match::from_str(text).unwrap();
        assert_eq!((to.protocol, to.proof), (Some(EgressProtocol::Tcp), Some(proof)));
        assert_eq!(to.to_string(), shown);
        assert_eq!(Match::from_str(shown), Ok(to));
    }
}

#[test]
fn patterns_match_names() {
    let below = Pattern::Below("example.org".to_owned());
    for (name, is_below) in [
        ("www.example.org", true),
        ("a.b.example.org", true),
        ("example.org", false),
        (".example.org", false),
        ("badexample.org", false),
        ("www.example.org.net", false),
    ] {
        assert_eq!(below.matches(name), is_below, "{name}");
    }
    let exactly = Pattern::Exactly("example.org".to_owned());
    assert!(exactly.matches("example.org"));
    assert!(!exactly.matches("www.example.org"));
}

fn rule() -> impl Strategy<Value = String> {
    let target = prop_oneof![
        Just("*".to_owned()),
        (any::<u32>(), 0..=32_u8)
            .prop_map(|(bits, len)| format!("{}/{len}", core::net::Ipv4Addr::from(bits))),
        (any::<u128>(), 0..=128_u8)
            .prop_map(|(bits, len)| format!("[{}/{len}]", core::net::Ipv6Addr::from(bits))),
        "[a-z0-9_-]{1,63}(\\.[a-z0-9-]{1,20}){0,3}\\.[a-z]{2,5}",
        "\\*\\.[a-z]{2,5}\\.[a-z]{2,5}",
    ];
    let ports = prop_oneof![
        Just(String::new()),
        (1..9_u16, 9..99_u16).prop_map(|(a, b)| format!(":{a}-{b}"))
    ];
    let protocol = proptest::sample::select(vec!["", "/tcp", "/udp"]);
    (proptest::bool::ANY, target, ports, protocol).prop_map(|(allow, target, ports, protocol)| {
        format!(
            "{} {target}{ports}{protocol}",
            if allow { "allow" } else { "deny" }
        )
    })
}

proptest! {
    #[test]
    fn displayed_rule_parses_back(text in rule()) {
        let rule: EgressRule = text.parse().unwrap();
        let shown = rule.to_string();
        prop_assert_eq!(shown.parse::<EgressRule>().unwrap(), rule, "{}", shown);
    }

    #[test]
    fn random_text_never_panics(text in "\\PC{0,40}") {
        let _ = text.parse::<Match>();
    }

    #[test]
    fn address_is_not_parsed_as_a_name(text in "[0-9a-f.:]{1,20}") {
        if let Ok(Match { target: Target::Name(name), .. }) = text.parse() {
            prop_assert!(matches!(name, Pattern::Exactly(name) if name.ends_with(|c: char| c.is_ascii_alphanumeric())));
        }
    }
}

#[test]
fn part_of_the_names_of_another_pattern() {
    let pattern = |text: &str| match text.parse::<Match>().unwrap().target {
        Target::Name(pattern) => pattern,
        other => panic!("{other:?}"),
    };
    for (own, names, part) in [
        ("a.example", "a.example", Part::All),
        ("a.example", "b.example", Part::None),
        ("*.example", "a.example", Part::All),
        ("*.example", "example", Part::None),
        ("a.example", "*.example", Part::Some),
        ("*.example", "*.example", Part::All),
        ("*.example", "*.a.example", Part::All),
        ("*.a.example", "*.example", Part::Some),
        ("*.a.example", "*.b.example", Part::None),
        ("*.a.example", "a.example", Part::None),
        ("example", "*.example", Part::None),
    ] {
        assert_eq!(pattern(own).part_of(&pattern(names)), part, "{own} of {names}");
    }
}
