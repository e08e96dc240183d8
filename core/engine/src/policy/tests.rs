use super::metadata::METADATA;
use super::*;
use crate::address_plan::{Ipv4Plan, Ipv6Plan};
use crate::test_world::{OWNED, ip, net};
use proptest::prelude::*;

fn policy(host_loopback: &[&str], host_addresses: bool) -> Policy {
    Policy {
        host_loopback: host_loopback.iter().map(|text| ip(text)).collect(),
        host_addresses,
        ..net().policy
    }
}

/// The addresses of `--host-loopback` without an argument: those of the gateway.
const GATEWAYS: [&str; 2] = ["10.0.2.2", "fd70:6f6e:746f::2"];

/// Arguments of `--host-loopback`: one address of each family.
const CHOSEN: [&str; 2] = ["10.99.0.1", "fd99::1"];

/// Destinations that are refused with all options.
const NEVER: &[&str] = &[
    "0.0.0.0",
    "0.0.0.1",
    "0.255.255.255",
    "127.0.0.0",
    "127.0.0.1",
    "127.0.0.53",
    "127.255.255.255",
    "169.254.0.0",
    "169.254.169.254",
    "169.254.255.255",
    "224.0.0.0",
    "224.0.0.251",
    "239.255.255.255",
    "240.0.0.0",
    "254.1.2.3",
    "255.255.255.254",
    "255.255.255.255",
    "10.0.2.0",
    "10.0.2.255",
    "::",
    "::1",
    "::2",
    "fe80::",
    "fe80::2",
    "fe80::1",
    "febf:ffff::1",
    "ff00::",
    "ff02::1",
    "ff05::1:3",
    "ffff::",
    "fd70:6f6e:746f::",
    // IPv4-compatible, IPv4-mapped and IPv4-translated, with any embedded address
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:0.0.0.0",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:8.8.8.8",
    "::ffff:10.0.2.2",
    "::ffff:0:127.0.0.1",
    "::ffff:0:8.8.8.8",
    // NAT64, well-known prefix
    "64:ff9b::",
    "64:ff9b::0.0.0.0",
    "64:ff9b::127.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b::224.0.0.1",
    "64:ff9b::255.255.255.255",
    "64:ff9b::10.0.2.255",
    // NAT64, prefix for local use: with a prefix length of 96, and with 127.0.0.1 and 169.254.169.254 behind prefixes
    // of 48, 56 and 64 bits
    "64:ff9b:1::",
    "64:ff9b:1::0.0.0.1",
    "64:ff9b:1::127.0.0.1",
    "64:ff9b:1::169.254.169.254",
    "64:ff9b:1:fffe::127.0.0.1",
    "64:ff9b:1:7f00:0:100::",
    "64:ff9b:1:7f00:0:100:808:808",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:7f:0:1::",
    "64:ff9b:1:a9:fe:a9fe::",
    "64:ff9b:1:0:7f:0:100:0",
    "64:ff9b:1:0:a9:fea9:fe00:0",
    // 6to4
    "2002::1",
    "2002:7f00:1::1",
    "2002:a9fe:a9fe::1",
    "2002:e000:1::",
    "2002:ffff:ffff::1",
    "2002:a00:2ff::1",
];

/// Destinations, and the decision with each option: none; `--host-loopback`; `--host-loopback=` an address of each
/// family; `--host-addresses`.
#[rustfmt::skip]
const TABLE: &[(&str, [Result<&str, Refusal>; 4])] = {
    use Refusal::{HostAddress, HostLoopback, Unassigned};
    const fn always(to: &'static str) -> [Result<&'static str, Refusal>; 4] { [Ok(to); 4] }
    &[
        ("8.8.8.8", always("8.8.8.8")),
        ("1.0.0.0", always("1.0.0.0")),
        ("126.255.255.255", always("126.255.255.255")),
        ("128.0.0.0", always("128.0.0.0")),
        ("169.253.255.255", always("169.253.255.255")),
        ("169.255.0.0", always("169.255.0.0")),
        ("223.255.255.255", always("223.255.255.255")),
        ("10.0.1.255", always("10.0.1.255")),
        ("10.0.3.0", always("10.0.3.0")),
        ("192.168.7.2", always("192.168.7.2")),
        ("2001:db8::1", always("2001:db8::1")),
        ("fe7f::1", always("fe7f::1")),
        ("fec0::1", always("fec0::1")),
        ("fd70:6f6e:746f:1::2", always("fd70:6f6e:746f:1::2")),
        ("64:ff9b::8.8.8.8", always("64:ff9b::8.8.8.8")),
        ("64:ff9b:1::8.8.8.8", always("64:ff9b:1::8.8.8.8")),
        ("64:ff9b:1:fffe::8.8.8.8", always("64:ff9b:1:fffe::8.8.8.8")),
        ("64:ff9b:1:808:8:800::", always("64:ff9b:1:808:8:800::")),
        ("64:ff9b:2::127.0.0.1", always("64:ff9b:2::127.0.0.1")),
        ("2002:808:808::1", always("2002:808:808::1")),
        ("10.0.2.2", [Err(HostLoopback), Ok("127.0.0.1"), Err(HostLoopback), Err(HostLoopback)]),
        ("fd70:6f6e:746f::2", [Err(HostLoopback), Ok("::1"), Err(HostLoopback), Err(HostLoopback)]),
        ("64:ff9b::10.0.2.2", [Err(HostLoopback); 4]),
        ("2002:a00:202::1", [Err(HostLoopback); 4]),
        ("10.99.0.1", [Ok("10.99.0.1"), Ok("10.99.0.1"), Ok("127.0.0.1"), Ok("10.99.0.1")]),
        ("fd99::1", [Ok("fd99::1"), Ok("fd99::1"), Ok("::1"), Ok("fd99::1")]),
        ("10.99.0.2", always("10.99.0.2")),
        ("64:ff9b::10.99.0.1", [Ok("64:ff9b::10.99.0.1"), Ok("64:ff9b::10.99.0.1"), Err(HostLoopback), Ok("64:ff9b::10.99.0.1")]),
        ("10.0.2.1", [Err(Unassigned); 4]),
        ("10.0.2.3", [Err(Unassigned); 4]),
        ("10.0.2.15", [Err(Unassigned); 4]),
        ("10.0.2.254", [Err(Unassigned); 4]),
        ("fd70:6f6e:746f::1", [Err(Unassigned); 4]),
        ("fd70:6f6e:746f::3", [Err(Unassigned); 4]),
        ("fd70:6f6e:746f::15", [Err(Unassigned); 4]),
        ("fd70:6f6e:746f:0:ffff:ffff:ffff:ffff", [Err(Unassigned); 4]),
        ("192.168.7.1", [Err(HostAddress), Err(HostAddress), Err(HostAddress), Ok("192.168.7.1")]),
        ("2001:db8:7::1", [Err(HostAddress), Err(HostAddress), Err(HostAddress), Ok("2001:db8:7::1")]),
        ("64:ff9b::192.168.7.1", [Err(HostAddress), Err(HostAddress), Err(HostAddress), Ok("64:ff9b::192.168.7.1")]),
        ("2002:c0a8:701::1", [Err(HostAddress), Err(HostAddress), Err(HostAddress), Ok("2002:c0a8:701::1")]),
    ]
};

#[test]
fn no_flag_allows_a_refused_class() {
    // An address is refused even if it is itself the argument of `--host-loopback`.
    let everything: Vec<&str> = GATEWAYS.iter().chain(&CHOSEN).chain(NEVER).copied().collect();
    for (loopback, addresses) in [
        (&[][..], false),
        (&[], true),
        (&GATEWAYS, false),
        (&GATEWAYS, true),
        (&CHOSEN, true),
        (&everything, true),
    ] {
        let policy = policy(loopback, addresses);
        for written in NEVER {
            assert_eq!(
                policy.translate_destination(ip(written)),
                Err(Refusal::Class),
                "{written}"
            );
        }
    }
}

#[test]
fn mapped_link_local_address_reaches_the_host_unless_it_is_a_metadata_service() {
    let link_local = ["169.254.1.2", "169.254.169.254", "169.254.0.1", "169.254.255.1"];
    let mut policy = policy(&link_local, false);
    let translated = |policy: &Policy, written| policy.translate_destination(ip(written));
    assert_eq!(translated(&policy, "169.254.1.2"), Ok(ip("127.0.0.1")));
    for refused in ["169.254.169.254", "169.254.0.1", "169.254.255.1", "169.254.1.3"] {
        assert_eq!(translated(&policy, refused), Err(Refusal::Class), "{refused}");
    }
    policy.mapped_host = std::mem::take(&mut policy.host_loopback);
    assert_eq!(translated(&policy, "169.254.1.2"), Err(Refusal::Unassigned));
    policy.host = [Some(ip("192.168.7.1")), None];
    assert_eq!(translated(&policy, "169.254.1.2"), Ok(ip("192.168.7.1")));
    assert_eq!(translated(&policy, "169.254.169.254"), Err(Refusal::Class));
    // The address of the host itself is still refused.
    assert_eq!(translated(&policy, "192.168.7.1"), Err(Refusal::HostAddress));
}

/// The plan of a guest that has the addresses of a host 192.168.7.1/24 and 2001:db8:7::1/64 behind routers ...254.
fn host_plan() -> Policy {
    let plan = AddressPlan {
        v4: Some(Ipv4Plan {
            address: "192.168.7.1/24".parse().unwrap(),
            additional: vec!["192.168.9.1/28".parse().unwrap()],
            gateway: "192.168.7.254".parse().unwrap(),
            default_route: true,
            dns: Some("169.254.1.1".parse().unwrap()),
        }),
        v6: Some(Ipv6Plan {
            address: "2001:db8:7::1/64".parse().unwrap(),
            additional: Vec::new(),
            gateway: "fe80::254".parse().unwrap(),
            router: "fe80::2".parse().unwrap(),
            default_route: true,
            dns: None,
        }),
        extent: SubnetExtent::HostNetwork,
        routes: Vec::new(),
    };
    Policy {
        plan,
        host: [Some(ip("192.168.7.1")), Some(ip("2001:db8:7::1"))],
        ..policy(&[], false)
    }
}

#[test]
fn subnets_of_the_host_are_forwarded_in_its_plan() {
    let policy = host_plan();
    for (written, expected) in [
        ("192.168.7.77", Ok("192.168.7.77")),
        ("192.168.7.254", Ok("192.168.7.254")),
        ("192.168.9.2", Ok("192.168.9.2")),
        ("2001:db8:7::77", Ok("2001:db8:7::77")),
        ("8.8.8.8", Ok("8.8.8.8")),
        ("192.168.7.1", Err(Refusal::Unassigned)),
        ("192.168.9.1", Err(Refusal::Unassigned)),
        ("2001:db8:7::1", Err(Refusal::Unassigned)),
        ("192.168.7.0", Err(Refusal::Class)),
        ("192.168.7.255", Err(Refusal::Class)),
        ("192.168.9.15", Err(Refusal::Class)),
        ("2001:db8:7::", Err(Refusal::Class)),
        ("169.254.1.1", Err(Refusal::Class)),
        ("fe80::254", Err(Refusal::Class)),
    ] {
        let expected = expected.map(ip);
        assert_eq!(policy.translate_destination(ip(written)), expected, "{written}");
    }
}

/// Tests that a link-local gateway, which is usual in IPv6 networks, can be mapped to the host's loopback.
#[test]
fn mapped_gateway_may_be_link_local() {
    let mapped = Policy {
        host_loopback: ["192.168.7.254", "fe80::254"].map(ip).to_vec(),
        ..host_plan()
    };
    assert_eq!(mapped.translate_destination(ip("fe80::254")), Ok(ip("::1")));
    assert_eq!(mapped.translate_destination(ip("fe80::253")), Err(Refusal::Class));
    assert_eq!(mapped.visible_client_addr(ip("::1")), ip("fe80::254"));
}

#[test]
fn client_without_a_visible_address_appears_as_the_mapped_address_or_the_gateway() {
    let plain = host_plan();
    let mapped = Policy {
        host_loopback: ["192.168.7.254", "2001:db8:ffff::1"].map(ip).to_vec(),
        mapped_host: ["169.254.1.2", "2001:db8:ffff::2"].map(ip).to_vec(),
        ..host_plan()
    };
    for (peer, without, with) in [
        // A client on the host's loopback.
        ("127.0.0.1", "192.168.7.254", "192.168.7.254"),
        ("::1", "fe80::254", "2001:db8:ffff::1"),
        // On the host's own address, which is the guest's.
        ("192.168.7.1", "192.168.7.254", "169.254.1.2"),
        ("192.168.9.1", "192.168.7.254", "192.168.7.254"),
        ("2001:db8:7::1", "fe80::254", "2001:db8:ffff::2"),
        // On the same network, and elsewhere.
        ("192.168.7.77", "192.168.7.77", "192.168.7.77"),
        ("2001:db8:7::77", "2001:db8:7::77", "2001:db8:7::77"),
        ("8.8.8.8", "8.8.8.8", "8.8.8.8"),
        ("fe80::77", "fe80::254", "fe80::254"),
    ] {
        assert_eq!(plain.visible_client_addr(ip(peer)), ip(without), "{peer}");
        assert_eq!(mapped.visible_client_addr(ip(peer)), ip(with), "{peer}, mapped");
    }
}

#[test]
fn metadata_addresses_are_refused_in_every_form() {
    let policy = policy(&[], true);
    for written in [
        "168.63.129.16",
        "100.100.100.200",
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "fd00:42::42",
        "fd00:c1::a9fe:a9fe",
        "::ffff:168.63.129.16",
        "64:ff9b::168.63.129.16",
        "64:ff9b::100.100.100.200",
        "64:ff9b:1::168.63.129.16",
        "2002:a83f:8110::1",
        "2002:6464:64c8::1",
    ] {
        assert_eq!(
            policy.translate_destination(ip(written)),
            Err(Refusal::Class),
            "{written}"
        );
    }
}

#[test]
fn metadata_flag_allows_only_metadata_addresses() {
    let open = Policy {
        metadata: true,
        ..policy(&[], false)
    };
    for written in METADATA {
        assert_eq!(open.translate_destination(written), Ok(written));
    }
    for written in NEVER.iter().filter(|written| !METADATA.contains(&ip(written))) {
        assert_eq!(
            open.translate_destination(ip(written)),
            Err(Refusal::Class),
            "{written}"
        );
    }
    for written in [
        "169.254.170.3",
        "64:ff9b::169.254.169.254",
        "64:ff9b::168.63.129.16",
        "::ffff:169.254.169.254",
        "2002:a9fe:a9fe::1",
    ] {
        assert_eq!(
            open.translate_destination(ip(written)),
            Err(Refusal::Class),
            "{written}"
        );
    }
    for (written, refusal) in [
        ("192.168.7.1", Refusal::HostAddress),
        ("10.0.2.2", Refusal::HostLoopback),
    ] {
        assert_eq!(open.translate_destination(ip(written)), Err(refusal), "{written}");
    }
}

#[test]
fn metadata_address_owned_by_the_host_is_refused() {
    let mut open = Policy {
        metadata: true,
        ..policy(&[], false)
    };
    open.owned = ["169.254.169.254/32".parse().unwrap()].into_iter().collect();
    assert_eq!(
        open.translate_destination(ip("169.254.169.254")),
        Err(Refusal::HostAddress)
    );
    // An address that is an argument of `--host-loopback` is translated to the host's loopback.
    let loopback = policy(&["168.63.129.16"], false);
    assert_eq!(
        loopback.translate_destination(ip("168.63.129.16")),
        Ok(ip("127.0.0.1"))
    );
}

#[test]
fn each_flag_allows_its_addresses() {
    let flags = [
        policy(&[], false),
        policy(&GATEWAYS, false),
        policy(&CHOSEN, false),
        policy(&[], true),
    ];
    for (written, answers) in TABLE {
        for (policy, answer) in flags.iter().zip(answers) {
            assert_eq!(
                policy.translate_destination(ip(written)),
                answer.map(ip),
                "{written}"
            );
        }
    }
}

#[test]
fn subnet_of_two_has_no_broadcast_address() {
    let mut policy = policy(&["10.0.2.2"], false);
    policy.plan.v4.as_mut().unwrap().address = "10.0.2.3/31".parse().unwrap();
    assert_eq!(policy.translate_destination(ip("10.0.2.2")), Ok(ip("127.0.0.1")));
    assert_eq!(
        policy.translate_destination(ip("10.0.2.3")),
        Err(Refusal::Unassigned)
    );
}

#[test]
fn client_with_a_local_address_appears_as_the_gateway() {
    let policy = policy(&[], false);
    for (peer, shown) in [
        ("127.0.0.1", "10.0.2.2"),
        ("127.0.0.53", "10.0.2.2"),
        ("0.0.0.0", "10.0.2.2"),
        ("169.254.3.4", "10.0.2.2"),
        ("10.0.2.2", "10.0.2.2"),
        ("10.0.2.15", "10.0.2.2"),
        ("10.0.2.77", "10.0.2.2"),
        ("::ffff:127.0.0.1", "10.0.2.2"),
        ("::ffff:10.0.2.77", "10.0.2.2"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("192.0.2.7", "192.0.2.7"),
        ("192.168.7.1", "192.168.7.1"),
        ("::1", "fd70:6f6e:746f::2"),
        ("::", "fd70:6f6e:746f::2"),
        ("fe80::2", "fd70:6f6e:746f::2"),
        ("fe80::1234", "fd70:6f6e:746f::2"),
        ("fd70:6f6e:746f::15", "fd70:6f6e:746f::2"),
        ("fd70:6f6e:746f::77", "fd70:6f6e:746f::2"),
        ("2001:db8::7", "2001:db8::7"),
    ] {
        assert_eq!(policy.visible_client_addr(ip(peer)), ip(shown), "{peer}");
    }
    let mut without = policy.clone();
    without.plan.v6 = None;
    assert_eq!(without.visible_client_addr(ip("2001:db8::7")), ip("10.0.2.2"));
    assert_eq!(without.visible_client_addr(ip("::1")), ip("10.0.2.2"));
}

#[test]
fn source_address_must_be_unicast() {
    for invalid in [
        "0.0.0.0",
        "0.255.255.255",
        "127.0.0.0",
        "127.0.0.1",
        "127.255.255.255",
        "224.0.0.0",
        "239.255.255.255",
        "240.0.0.0",
        "255.255.255.254",
        "255.255.255.255",
        "::",
        "::1",
        "ff00::",
        "ff02::1",
        "ffff::",
    ] {
        assert!(!may_send(ip(invalid)), "{invalid}");
    }
    for unicast in [
        "1.0.0.0",
        "10.0.2.15",
        "126.255.255.255",
        "128.0.0.0",
        "169.254.3.4",
        "223.255.255.255",
        "::2",
        "2001:db8::1",
        "fd70:6f6e:746f::15",
        "fe80::15",
        "feff::1",
    ] {
        assert!(may_send(ip(unicast)), "{unicast}");
    }
}

/// Generates addresses of both families, most of them near the boundaries of the policy's address classes.
fn written() -> impl Strategy<Value = IpAddr> {
    let chosen = NEVER
        .iter()
        .chain(&GATEWAYS)
        .chain(&CHOSEN)
        .chain(&OWNED)
        .copied()
        .chain(TABLE.iter().map(|(written, _)| *written))
        .map(ip)
        .collect::<Vec<_>>();
    prop_oneof![
        any::<u32>().prop_map(|bits| Ipv4Addr::from(bits).into()),
        any::<u128>().prop_map(|bits| Ipv6Addr::from(bits).into()),
        (proptest::sample::select(chosen), 0..128_u32).prop_map(|(address, bit)| match address {
            IpAddr::V4(v4) => Ipv4Addr::from(v4.to_bits() ^ 1 << (bit % 32)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from(v6.to_bits() ^ 1 << bit).into(),
        }),
    ]
}

#[test]
fn ipv6_destinations_are_refused_without_ipv6() {
    let mut policy = Policy {
        metadata: true,
        ..policy(&["fd99::1"], true)
    };
    policy.plan.v6 = None;
    for to in [
        "2001:db8:1234::1",
        "fd00::1",
        "fd00:ec2::254",
        "fd99::1",
        "64:ff9b::808:808",
    ] {
        assert!(policy.translate_destination(ip(to)).is_err(), "{to}");
    }
    assert_eq!(policy.translate_destination(ip("8.8.8.8")), Ok(ip("8.8.8.8")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn loopback_is_reachable_only_by_its_configured_address(written in written(), addresses: bool, which in 0..3_usize) {
        let policy = policy([&[][..], &GATEWAYS, &CHOSEN][which], addresses);
        if let Ok(to) = policy.translate_destination(written) {
            prop_assert!(!to.is_unspecified());
            prop_assert_eq!(to.is_loopback(), policy.host_loopback.contains(&written));
            prop_assert!(to == written || to.is_loopback());
            prop_assert_eq!(to.to_canonical(), to);
        }
    }

    #[test]
    fn client_with_the_guests_address_appears_as_the_gateway(peer in written()) {
        let policy = policy(&[], false);
        let shown = policy.visible_client_addr(peer);
        prop_assert_ne!(Some(shown), policy.plan.guest(shown));
        prop_assert!(!shown.is_loopback() && !shown.is_unspecified());
    }
}
