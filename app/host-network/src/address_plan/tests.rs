use pontoon_engine::address_plan::PlannedRoute;

use super::*;

/// An interface with two addresses of each family, routers, and a route to another network.
fn interface() -> HostInterface {
    let gateway = |text: &str| Some(NextHop::Gateway(text.parse().unwrap()));
    HostInterface {
        name: "eth7".to_owned(),
        mtu: 1_400,
        v4: ["192.168.7.5/24", "192.168.8.5/24"]
            .map(|net| net.parse().unwrap())
            .to_vec(),
        v6: ["2001:db8:7::5/64", "2001:db8:8::5/64"]
            .map(|net| net.parse().unwrap())
            .to_vec(),
        gateway_v4: gateway("192.168.7.254"),
        gateway_v6: gateway("fe80::254"),
        routes: ["198.51.100.0/24", "2001:db8:9::/48"]
            .into_iter()
            .zip(["192.168.7.253", "2001:db8:7::fd"])
            .map(|(destination, gateway)| PlannedRoute {
                destination: destination.parse().unwrap(),
                gateway: Some(gateway.parse().unwrap()),
            })
            .collect(),
    }
}

fn addressing(addresses: &[&str], gateways: &[&str], dns: &[&str]) -> Addressing {
    let ips = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
    Addressing {
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        gateways: ips(gateways),
        dns: ips(dns),
        ..Addressing::default()
    }
}

/// The plan on a host without networks.
fn on_empty_host(options: &Addressing) -> Result<AddressPlan, Error> {
    let host = HostNetwork::default();
    choose(options, &host, &mut Netlink::open().unwrap()).map(|chosen| chosen.plan)
}

/// Guest address, gateway and DNS forwarder of both families.
fn texts(plan: &AddressPlan) -> Vec<String> {
    let v4 = plan.v4.iter().flat_map(|own| {
        let dns = own.dns.map_or("none".to_owned(), |dns| dns.to_string());
        [own.address.to_string(), own.gateway.to_string(), dns]
    });
    let v6 = plan.v6.iter().flat_map(|own| {
        let dns = own.dns.map_or("none".to_owned(), |dns| dns.to_string());
        [own.address.to_string(), own.gateway.to_string(), dns]
    });
    v4.chain(v6).collect()
}

#[test]
fn private_plan_has_the_usual_addresses() {
    let plan = on_empty_host(&Addressing::default()).unwrap();
    assert_eq!(
        texts(&plan),
        [
            "10.0.2.15/24",
            "10.0.2.2",
            "10.0.2.3",
            "fd70:6f6e:746f::15/64",
            "fd70:6f6e:746f::2",
            "fd70:6f6e:746f::3"
        ]
    );
    assert_eq!(plan.extent, SubnetExtent::Link);
}

/// Tests the gateway and the DNS forwarder by the host number of the guest and the size of its subnet. For a subnet
/// that has no room for three hosts, and for a link-local one, both are outside of the subnet.
#[test]
fn given_address_replaces_its_family_of_the_private_plan() {
    for (address, gateway, dns) in [
        ("10.9.0.100/24", "10.9.0.2", "10.9.0.3"),
        ("10.9.0.1/24", "10.9.0.2", "10.9.0.3"),
        ("10.9.0.2/24", "10.9.0.1", "10.9.0.3"),
        ("10.9.0.3/24", "10.9.0.2", "10.9.0.1"),
        ("10.9.7.9/8", "10.0.0.2", "10.0.0.3"),
        ("10.9.0.14/29", "10.9.0.10", "10.9.0.11"),
        ("10.9.0.9/30", "169.254.2.1", "169.254.2.1"),
        ("10.9.0.9/31", "169.254.2.1", "169.254.2.1"),
        ("10.9.0.9/32", "169.254.2.1", "169.254.2.1"),
        ("169.254.7.7/16", "169.254.2.1", "169.254.2.1"),
    ] {
        let options = Addressing {
            ipv6: Ipv6::Off,
            ..addressing(&[address], &[], &[])
        };
        let plan = on_empty_host(&options).unwrap();
        assert_eq!(texts(&plan), [address, gateway, dns]);
        assert!(plan.v4.unwrap().default_route);
    }
    for (address, gateway, dns, router) in [
        ("fd00::100/64", "fd00::2", "fd00::3", "fe80::2"),
        ("fd00::2/64", "fd00::1", "fd00::3", "fe80::2"),
        ("fd00::3/64", "fd00::2", "fd00::1", "fe80::2"),
        ("fd00::6/125", "fd00::2", "fd00::3", "fe80::2"),
        ("fd00::6/126", "fe80::2", "fd70:6f6e:746f::3", "fe80::2"),
        ("fd00::6/127", "fe80::2", "fd70:6f6e:746f::3", "fe80::2"),
        ("fd00::6/128", "fe80::2", "fd70:6f6e:746f::3", "fe80::2"),
        ("fe80::6/64", "fe80::2", "fd70:6f6e:746f::3", "fe80::2"),
        ("fe80::2/64", "fe80::1", "fd70:6f6e:746f::3", "fe80::1"),
    ] {
        let options = Addressing {
            ipv4: Ipv4::Off,
            ..addressing(&[address], &[], &[])
        };
        let plan = on_empty_host(&options).unwrap();
        assert_eq!(texts(&plan), [address, gateway, dns]);
        assert_eq!(plan.v6.unwrap().router.to_string(), router);
    }
    let options = Addressing {
        ipv4: Ipv4::Off,
        ..addressing(&["fd00::100/64", "fd00:1::100/64"], &["fd00::7"], &["fd00::8"])
    };
    let plan = on_empty_host(&options).unwrap();
    assert_eq!(texts(&plan), ["fd00::100/64", "fd00::7", "fd00::8"]);
    assert_eq!(plan.v6.unwrap().additional, ["fd00:1::100/64".parse().unwrap()]);
}

/// Tests that a guest without a default route has a route to a DNS forwarder outside of its subnets.
#[test]
fn dns_forwarder_is_reached_without_a_default_route() {
    let routes = |plan: &AddressPlan| -> Vec<String> {
        let routes = plan.routes.iter();
        routes
            .map(|route| format!("{} {:?}", route.destination, route.gateway))
            .collect()
    };
    let isolated = HostInterface {
        gateway_v4: None,
        gateway_v6: None,
        routes: Vec::new(),
        ..interface()
    };
    let mut plan = of_interface(&Addressing::default(), &isolated);
    add_dns_routes(&mut plan);
    assert_eq!(
        routes(&plan),
        ["169.254.2.1/32 None", "fd70:6f6e:746f::3/128 None"]
    );
    let mut plan = of_interface(&Addressing::default(), &interface());
    add_dns_routes(&mut plan);
    assert_eq!(plan.routes.len(), 2, "a default route leads to it");
    // The host has no IPv6 default route.
    let inside = on_empty_host(&Addressing::default()).unwrap();
    assert!(routes(&inside).is_empty());
    let outside = on_empty_host(&addressing(&[], &[], &["fd99::1"])).unwrap();
    assert_eq!(routes(&outside), ["fd99::1/128 None"]);
    let routed = Addressing {
        routes: vec![route("fd99::/64", Some("fd70:6f6e:746f::7"))],
        ..addressing(&[], &[], &["fd99::1"])
    };
    assert_eq!(on_empty_host(&routed).unwrap().routes, routed.routes);
}

fn route(destination: &str, gateway: Option<&str>) -> PlannedRoute {
    PlannedRoute {
        destination: destination.parse().unwrap(),
        gateway: gateway.map(|text| text.parse().unwrap()),
    }
}

#[test]
fn given_route_replaces_that_of_the_interface() {
    let options = Addressing {
        routes: vec![route("198.51.100.0/24", Some("192.168.7.9"))],
        ..Addressing::default()
    };
    let mut plan = of_interface(&options, &interface());
    apply(&options, &mut plan).unwrap();
    let expected = [
        route("2001:db8:9::/48", Some("2001:db8:7::fd")),
        options.routes[0],
    ];
    assert_eq!(plan.routes, expected);
}

#[test]
fn plan_of_an_interface_has_its_addresses_and_routes() {
    let plan = of_interface(&Addressing::default(), &interface());
    assert_eq!(
        texts(&plan),
        [
            "192.168.7.5/24",
            "192.168.7.254",
            "192.168.7.254",
            "2001:db8:7::5/64",
            "fe80::254",
            "fd70:6f6e:746f::3"
        ]
    );
    assert_eq!(plan.extent, SubnetExtent::HostNetwork);
    assert_eq!(plan.routes.len(), 2);
    let v4 = plan.v4.unwrap();
    assert!(v4.default_route && v4.additional == ["192.168.8.5/24".parse().unwrap()]);
    assert_eq!(plan.v6.unwrap().router, "fe80::254".parse::<Ipv6Addr>().unwrap());
}

#[test]
fn plan_of_an_interface_omits_families_that_are_off_or_absent() {
    let off = Addressing {
        ipv6: Ipv6::Off,
        ..Addressing::default()
    };
    let plan = of_interface(&off, &interface());
    assert!(plan.v6.is_none() && plan.routes.len() == 1);
    let absent = HostInterface {
        v4: Vec::new(),
        gateway_v6: None,
        ..interface()
    };
    let plan = of_interface(&Addressing::default(), &absent);
    assert!(plan.v4.is_none());
    let v6 = plan.v6.unwrap();
    assert!(!v6.default_route && v6.gateway == Ipv6Plan::ROUTER);
}

#[test]
fn options_replace_parts_of_the_plan_of_an_interface() {
    let options = addressing(&["192.168.7.9/24"], &["192.168.7.1"], &["169.254.1.1"]);
    let mut plan = of_interface(&options, &interface());
    apply(&options, &mut plan).unwrap();
    assert_eq!(
        texts(&plan)[..3],
        ["192.168.7.9/24", "192.168.7.1", "169.254.1.1"]
    );
    assert!(plan.v4.unwrap().additional.is_empty());
}

/// Returns the error text of options on a host without networks.
fn refused(options: &Addressing) -> String {
    let error = on_empty_host(options).expect_err(&format!("{options:?}"));
    assert_eq!(error.status(), 2, "{error}");
    error.to_string()
}

#[test]
fn contradicting_options_are_errors() {
    let without_v6 = |options: Addressing| Addressing {
        ipv6: Ipv6::Off,
        ..options
    };
    let with_routes = |routes: &[PlannedRoute]| Addressing {
        routes: routes.to_vec(),
        ..Addressing::default()
    };
    for (options, text) in [
        (
            without_v6(addressing(&["fd00::1/64"], &[], &[])),
            "--address fd00::1/64: the guest has no IPv6",
        ),
        (
            without_v6(addressing(&[], &["fd00::1"], &[])),
            "--gateway fd00::1: the guest has no IPv6",
        ),
        (
            without_v6(addressing(&[], &[], &["fd00::1"])),
            "--dns-address fd00::1: the guest has no IPv6",
        ),
        (
            addressing(&[], &["10.0.2.15"], &[]),
            "10.0.2.15 is the guest's address and the gateway's (try: --gateway ADDR)",
        ),
        (
            addressing(&["fd00::5/64", "fe80::2/64"], &[], &[]),
            "fe80::2 is the guest's address and the router's (try: --gateway with a link-local address)",
        ),
        (
            addressing(&[], &[], &["10.0.2.15"]),
            "10.0.2.15 is the guest's address and the DNS forwarder's (try: --dns-address ADDR)",
        ),
        (
            with_routes(&[route("192.0.2.0/24", Some("10.0.2.15"))]),
            "10.0.2.15 is the guest's address and the gateway's of --route 192.0.2.0/24",
        ),
        (
            with_routes(&[
                route("192.0.2.0/24", Some("10.0.2.8")),
                route("192.0.2.0/24", Some("10.0.2.9")),
            ]),
            "--route 192.0.2.0/24 is given twice (try: one of them)",
        ),
        (
            addressing(&["10.9.0.5/24", "10.9.0.5/16"], &[], &[]),
            "--address 10.9.0.5 is given twice (try: one of them)",
        ),
        (
            Addressing {
                ipv4: Ipv4::Subnet("10.8.0.0/24".parse().unwrap()),
                ..addressing(&["10.9.0.5/24"], &[], &[])
            },
            "--ipv4 10.8.0.0/24 and --address 10.9.0.5/24 exclude each other (try: one of them)",
        ),
        (
            Addressing {
                ipv6: Ipv6::Subnet("fd08::/64".parse().unwrap()),
                ..addressing(&["fd09::5/64"], &[], &[])
            },
            "--ipv6 fd08::/64 and --address fd09::5/64 exclude each other (try: one of them)",
        ),
        (
            Addressing {
                ipv4: Ipv4::Off,
                ..without_v6(Addressing::default())
            },
            "the guest has neither IPv4 nor IPv6",
        ),
    ] {
        assert_eq!(refused(&options), text);
    }
    let many: Vec<String> = (0..40).map(|n| format!("10.9.0.{}/24", n + 10)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(
        refused(&addressing(&many, &[], &[])),
        "the guest has more than 32 addresses of a family (try: --address ADDR/LEN for those that it needs)"
    );
}

/// Tests that network and broadcast addresses are refused. Subnets of two addresses and of one have none (RFC 3021, RFC
/// 6164).
#[test]
fn addresses_of_a_whole_subnet_are_errors() {
    for (address, text) in [
        (
            "10.9.0.0/24",
            "--address 10.9.0.0 is the network or broadcast address",
        ),
        (
            "10.9.0.255/24",
            "--address 10.9.0.255 is the network or broadcast address",
        ),
        (
            "10.9.0.7/30",
            "--address 10.9.0.7 is the network or broadcast address",
        ),
        (
            "fd09::/64",
            "--address fd09:: is the anycast address of the routers",
        ),
        (
            "fd09::/126",
            "--address fd09:: is the anycast address of the routers",
        ),
    ] {
        let subnet = address.parse::<IpNet>().unwrap().trunc();
        assert_eq!(
            refused(&addressing(&[address], &[], &[])),
            format!("{text} of the guest's subnet (try: another address of {subnet})")
        );
    }
    for address in [
        "10.9.0.6/31",
        "10.9.0.7/31",
        "10.9.0.0/32",
        "fd09::/127",
        "fd09::/128",
    ] {
        assert!(
            on_empty_host(&addressing(&[address], &[], &[])).is_ok(),
            "{address}"
        );
    }
    for address in ["10.0.2.0", "10.0.2.255", "fd70:6f6e:746f::"] {
        let line = refused(&addressing(&[], &[address], &[]));
        assert!(
            line.starts_with(&format!("--gateway {address} is the ")),
            "{line}"
        );
        let line = refused(&addressing(&[], &[], &[address]));
        assert!(
            line.starts_with(&format!("--dns-address {address} is the ")),
            "{line}"
        );
    }
}

#[test]
fn mapped_address_has_one_meaning_and_can_be_reached() {
    let plan = on_empty_host(&Addressing::default()).unwrap();
    let ips = |list: &[&str]| -> Vec<IpAddr> { list.iter().map(|text| text.parse().unwrap()).collect() };
    let check = |loopback: &[&str], host: &[&str]| mappings(&plan, &ips(loopback), &ips(host));
    for (loopback, host) in [
        (
            &["10.0.2.2", "fd70:6f6e:746f::2"][..],
            &["169.254.1.2", "fd00:1::2"][..],
        ),
        (&["10.0.2.9"], &["10.0.2.2"]),
        (&["10.0.2.9", "10.0.2.9"], &["10.0.2.3"]),
    ] {
        check(loopback, host).unwrap();
    }
    for (loopback, host, text) in [
        (
            &[][..],
            &["10.0.2.15"][..],
            "10.0.2.15 is the guest's address and that of --map-host",
        ),
        (
            &["fd70:6f6e:746f::15"],
            &[],
            "fd70:6f6e:746f::15 is the guest's address and that of --host-loopback",
        ),
        (
            &[],
            &["10.0.2.255"],
            "--map-host 10.0.2.255 is the network or broadcast address of the guest's subnet",
        ),
        (
            &["10.0.2.2"],
            &["10.0.2.2"],
            "--host-loopback and --map-host both map 10.0.2.2 (try: another address)",
        ),
    ] {
        let error = check(loopback, host).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.status()), (text, 2));
    }
    let v4 = on_empty_host(&Addressing {
        ipv6: Ipv6::Off,
        ..Addressing::default()
    });
    let error = mappings(&v4.unwrap(), &[], &ips(&["fd00:1::2"])).unwrap_err();
    assert_eq!(error.to_string(), "--map-host fd00:1::2: the guest has no IPv6");
}

#[test]
fn automatic_plan_is_that_of_the_interface_and_private_without_one() {
    let host = HostNetwork::default();
    let of = |options: &Addressing, interface| {
        let (plan, source) = automatic(options, &host, interface).unwrap();
        (plan, source.is_some())
    };
    let options = Addressing::default();
    let (plan, found) = of(&options, Some(interface()));
    assert_eq!(texts(&plan), texts(&of_interface(&options, &interface())));
    assert!(found);
    let (plan, found) = of(&options, None);
    assert_eq!(texts(&plan), texts(&private(&options, &host).unwrap()));
    assert!(!found);

    let only_v6 = HostInterface {
        v4: Vec::new(),
        gateway_v4: None,
        ..interface()
    };
    let (plan, _) = of(&options, Some(only_v6.clone()));
    assert_eq!(texts(&plan)[0], "10.0.2.15/24");
    assert_eq!(texts(&plan)[3], "2001:db8:7::5/64");
    let off = Addressing {
        ipv4: Ipv4::Off,
        ..Addressing::default()
    };
    assert!(of(&off, Some(only_v6)).0.v4.is_none());

    // An IPv6 side is made for an address of the options only.
    let only_v4 = HostInterface {
        v6: Vec::new(),
        gateway_v6: None,
        ..interface()
    };
    assert!(of(&options, Some(only_v4.clone())).0.v6.is_none());
    let (plan, _) = of(&addressing(&["fd00::5/64"], &[], &[]), Some(only_v4));
    assert_eq!(plan.v6.unwrap().address.to_string(), "fd00::5/64");
}

#[test]
fn parts_of_the_interface_can_be_left_out() {
    let options = Addressing {
        one_host_address: true,
        no_host_routes: true,
        ..Addressing::default()
    };
    let plan = of_interface(&options, &interface());
    let whole = of_interface(&Addressing::default(), &interface());
    assert!(plan.routes.is_empty() && !whole.routes.is_empty());
    let (v4, v6) = (plan.v4.unwrap(), plan.v6.unwrap());
    assert!(v4.additional.is_empty() && v6.additional.is_empty());
    assert!(v4.default_route && v6.default_route);
    assert!(!whole.v4.unwrap().additional.is_empty());
}
