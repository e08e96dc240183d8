use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Publish {
    text.parse().unwrap()
}

fn range(first: u16, last: u16) -> PortRange {
    PortRange { first, last }
}

fn plain() -> Publish {
    Publish {
        protocols: Protocols::Tcp,
        address: None,
        interface: None,
        ports: PublishedPorts::Range {
            host: range(8080, 8080),
            guest: 80,
        },
        excluded: Vec::new(),
        target: None,
        path: PublishedPath::Shortest,
    }
}

#[test]
fn paths_are_parsed_and_displayed() {
    for (text, path) in [
        ("8080:80/tcp,via=link", PublishedPath::Link),
        ("8080:80/tcp,via=guest-loopback", PublishedPath::GuestLoopback),
    ] {
        assert_eq!(parse(text), Publish { path, ..plain() });
    }
    assert_eq!(parse("8080:80,via=link").to_string(), "8080:80/tcp,via=link");
    assert_eq!(parse("auto,via=link").path, PublishedPath::Link);
    for wrong in [
        "8080:80,via=",
        "8080:80,via=link/tcp",
        "8080:80/udp,via=guest-loopback",
        "8080:10.0.2.100:80,via=guest-loopback",
    ] {
        assert!(wrong.parse::<Publish>().is_err(), "{wrong}");
    }
}

#[test]
fn every_form_is_parsed() {
    assert_eq!(parse("8080:80"), plain());
    assert_eq!(parse("8080:80/tcp"), plain());
    let protocols = |protocols| Publish { protocols, ..plain() };
    assert_eq!(parse("8080:80/udp"), protocols(Protocols::Udp));
    assert_eq!(parse("8080:80/both"), protocols(Protocols::Both));
    let at = |address: IpAddr| Publish {
        address: Some(address),
        ..plain()
    };
    assert_eq!(parse("127.0.0.1:8080:80"), at(Ipv4Addr::LOCALHOST.into()));
    assert_eq!(parse("[::1]:8080:80"), at(Ipv6Addr::LOCALHOST.into()));
    let on = Publish {
        interface: Some("eth0.5".to_owned()),
        ..plain()
    };
    assert_eq!(parse("%eth0.5:8080:80"), on);
    assert_eq!(parse("0.0.0.0%lo:8080:80").interface.as_deref(), Some("lo"));
    assert_eq!(
        parse("[::]%lo:8080:80").address,
        Some(Ipv6Addr::UNSPECIFIED.into())
    );
    let same = PublishedPorts::Range {
        host: range(22, 22),
        guest: 22,
    };
    assert_eq!(parse("22").ports, same);
    assert_eq!(parse("127.0.0.1:22").ports, same);
    assert_eq!(parse("1-65535:1-65535").count(), 65535);
}

#[test]
fn target_addresses_are_parsed() {
    let target = |text| {
        let publish = parse(text);
        (publish.target.unwrap().to_string(), publish.guest_port(8080))
    };
    assert_eq!(target("8080:10.0.2.100:80"), ("10.0.2.100".to_owned(), 80));
    assert_eq!(
        target("0.0.0.0:8080:10.0.2.100:80"),
        ("10.0.2.100".to_owned(), 80)
    );
    assert_eq!(target("[::]:8080:[fd00::2]:80"), ("fd00::2".to_owned(), 80));
    assert_eq!(target("8080:10.0.2.100"), ("10.0.2.100".to_owned(), 8080));
    // If no host address is named, only sockets of the target's family are opened.
    assert_eq!(
        parse("8080:10.0.2.100").listens_at(),
        Some(Ipv4Addr::UNSPECIFIED.into())
    );
    assert_eq!(
        parse("80,443:10.0.2.100").target,
        Some(Ipv4Addr::new(10, 0, 2, 100).into())
    );
}

#[test]
fn lists_and_exclusions_are_parsed() {
    let list = parse("80,443,8000-8009");
    let ranges = vec![range(80, 80), range(443, 443), range(8000, 8009)];
    assert_eq!(list.ports, PublishedPorts::List(ranges.clone()));
    assert_eq!((list.named(), list.count()), (ranges, 12));
    let gap = parse("8000-8009,~8003,~8008-9000:80-89/both");
    assert_eq!(gap.named(), [range(8000, 8002), range(8004, 8007)]);
    assert_eq!((gap.guest_port(8007), gap.count()), (87, 14));
    assert_eq!(parse("all").ports, PublishedPorts::All);
    assert_eq!(parse("all,~22").excluded, [range(22, 22)]);
    assert_eq!(parse("auto/udp").ports, PublishedPorts::Auto(Vec::new()));
    let auto = parse("8000-9000,auto,~8080");
    assert_eq!(auto.ports, PublishedPorts::Auto(vec![range(8000, 9000)]));
    for (port, is_found) in [
        (7999, false),
        (8000, true),
        (8080, false),
        (9000, true),
        (9001, false),
    ] {
        assert_eq!(auto.auto_contains(Protocol::Tcp, port), is_found, "{port}");
        assert!(!auto.auto_contains(Protocol::Udp, port));
    }
    assert!(
        parse("auto").auto_contains(Protocol::Tcp, 1) && parse("auto").auto_contains(Protocol::Tcp, 65535)
    );
}

#[test]
fn parse_errors_name_the_mistake() {
    for (text, why) in [
        ("", "'' is not a port (1 to 65535)"),
        ("0:80", "'0' is not a port (1 to 65535)"),
        ("80:", "'' is not a port (1 to 65535)"),
        (":80", "'' is not a port (1 to 65535)"),
        ("+80:80", "'+80' is not a port (1 to 65535)"),
        ("80:65536", "'65536' is not a port (1 to 65535)"),
        ("80-:80", "'' is not a port (1 to 65535)"),
        ("80,:80", "'' is not a port (1 to 65535)"),
        ("80,~:80", "'' is not a port (1 to 65535)"),
        ("*:80", "'*' is not a port (1 to 65535)"),
        ("80/sctp", "protocol 'sctp' is not tcp, udp or both"),
        ("80/", "protocol '' is not tcp, udp or both"),
        ("80-89:80-88", "the two ranges differ in length"),
        ("89-80:89-80", "'89-80' runs backwards"),
        ("80,~9-8", "'9-8' runs backwards"),
        ("::1:80:80", "an IPv6 address goes in brackets: [ADDR]:PORTS"),
        ("[1.2.3.4]:80:80", "'1.2.3.4' is not an IPv6 address"),
        (
            "host:80:80",
            "'host' is not an IPv4 address (an IPv6 address goes in brackets)",
        ),
        (
            "1.2.3:80:80",
            "'1.2.3' is not an IPv4 address (an IPv6 address goes in brackets)",
        ),
        ("127.0.0.1", "no port: the form is [ADDR:]PORTS[:[TARGET:]PORTS]"),
        ("%lo", "no port: the form is [ADDR:]PORTS[:[TARGET:]PORTS]"),
        ("127.0.0.1:127.0.0.1:80", "'127.0.0.1' is not a port (1 to 65535)"),
        (
            "1:2:3",
            "'3' is one part too many: the form is [ADDR:]PORTS[:[TARGET:]PORTS]",
        ),
        ("%:80", "'' is not a valid interface name"),
        ("%a%b:80", "'a%b' is not a valid interface name"),
        ("%a[b:80", "'a[b:80' is not a valid interface name"),
        ("%..:80", "'..' is not a valid interface name"),
        (
            "%sixteen-bytes-ab:80",
            "interface name 'sixteen-bytes-ab' is longer than 15 characters",
        ),
        ("all,auto", "'all' and 'auto' exclude each other"),
        ("all,80", "'all' excludes other ports"),
        ("all:80", "'all' excludes guest ports: they are the host's"),
        ("auto:80", "'auto' excludes guest ports: they are the host's"),
        (
            "80,443:80",
            "a list of ports excludes guest ports: one value for each range",
        ),
        (
            "~80",
            "no port from which to exclude others: a range, 'all' or 'auto'",
        ),
        ("80,~80", "all ports are excluded"),
        ("80-82,~1-81,~82", "all ports are excluded"),
        ("all,~1-65535", "all ports are excluded"),
        ("auto,~1-65535", "all ports are excluded"),
        ("80,auto,~80", "all ports are excluded"),
        ("auto:10.0.2.100", "'auto' excludes a target address"),
        (
            "[::]:80:10.0.2.100:80",
            ":: and 10.0.2.100 are of different families",
        ),
    ] {
        assert_eq!(text.parse::<Publish>().unwrap_err(), why, "{text}");
    }
    let many = vec!["80"; MOST_RANGES + 1].join(",");
    assert_eq!(many.parse::<Publish>().unwrap_err(), "more than 256 ranges");
}

#[test]
fn display_is_the_full_form() {
    for text in [
        "8080:80/tcp",
        "127.0.0.1:8000-8009:80-89/udp",
        "[2001:db8::1]:53:53/udp",
        "%lo:80,443/both",
        "0.0.0.0%eth0:all,~22,~80-90/tcp",
        "8000-9000,auto,~8080/udp",
        "0.0.0.0:8080:10.0.2.100:80/tcp",
        "80,443:[fd00::2]/tcp",
    ] {
        assert_eq!(parse(text).to_string(), text);
    }
}

#[test]
fn excluded_ports_split_ranges() {
    let without = |excluded: &[(u16, u16)]| {
        let excluded: Vec<_> = excluded
            .iter()
            .map(|(first, last)| range(*first, *last))
            .collect();
        range(10, 20).without(&excluded)
    };
    assert_eq!(without(&[]), [range(10, 20)]);
    assert_eq!(without(&[(1, 9), (21, 65535)]), [range(10, 20)]);
    assert_eq!(without(&[(10, 10), (20, 20)]), [range(11, 19)]);
    assert_eq!(
        without(&[(12, 13), (15, 15)]),
        [range(10, 11), range(14, 14), range(16, 20)]
    );
    assert_eq!(without(&[(1, 65535)]), []);
    assert_eq!(
        PortRange::ALL.without(&[range(1, 1), range(65535, 65535)]),
        [range(2, 65534)]
    );
}

/// Generates texts, many of which are valid values.
fn text() -> impl Strategy<Value = String> {
    let port = prop_oneof![1..=65535_u32, 1..=12_u32];
    let range = (port.clone(), port, any::<bool>()).prop_map(|(a, b, single)| match single {
        true => a.to_string(),
        false => format!("{}-{}", a.min(b), a.max(b)),
    });
    let item = prop_oneof![
        4 => range.clone(),
        1 => range.clone().prop_map(|range| format!("~{range}")),
        1 => Just("all".to_owned()),
        1 => Just("auto".to_owned()),
    ];
    let address = prop_oneof![
        any::<u32>().prop_map(|bits| format!("{}:", Ipv4Addr::from_bits(bits))),
        any::<u128>().prop_map(|bits| format!("[{}]:", Ipv6Addr::from_bits(bits))),
        Just("%lo:".to_owned()),
        Just("0.0.0.0%a-b:".to_owned()),
        Just(String::new()),
    ];
    let list = proptest::collection::vec(item, 1..4).prop_map(|items| items.join(","));
    let guest = prop_oneof![
        2 => Just(String::new()),
        2 => range.prop_map(|range| format!(":{range}")),
        1 => Just(":10.0.2.100".to_owned()),
        1 => Just(":[fd00::2]:80".to_owned()),
    ];
    let protocol = prop::sample::select(vec!["", "/tcp", "/udp", "/both"]);
    (address, list, guest, protocol)
        .prop_map(|(address, list, guest, protocol)| address + &list + &guest + protocol)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn display_is_parsed_to_the_same_value(text in text()) {
        if let Ok(publish) = text.parse::<Publish>() {
            prop_assert_eq!(publish.to_string().parse(), Ok(publish));
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused_by_one_line(text in "[-0-9a-z.:,~%/\\[\\]]{0,24}") {
        match text.parse::<Publish>() {
            Ok(publish) => prop_assert_eq!(publish.to_string().parse(), Ok(publish)),
            Err(why) => prop_assert!(!why.is_empty() && !why.contains('\n')),
        }
    }
}
