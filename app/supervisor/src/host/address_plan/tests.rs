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

#[test]
fn given_address_replaces_its_family_of_the_private_plan() {
    for (address, expected) in [
        ("10.9.0.100/24", ["10.9.0.100/24", "10.9.0.2", "10.9.0.3"]),
        ("10.9.0.2/24", ["10.9.0.2/24", "10.9.0.1", "10.9.0.3"]),
        ("10.9.0.3/24", ["10.9.0.3/24", "10.9.0.2", "10.9.0.1"]),
        ("10.9.0.9/32", ["10.9.0.9/32", "169.254.2.1", "none"]),
    ] {
        let options = Addressing {
            ipv6: Ipv6::Off,
            ..addressing(&[address], &[], &[])
        };
        assert_eq!(texts(&on_empty_host(&options).unwrap()), expected);
    }
    let options = Addressing {
        ipv4: Ipv4::Off,
        ..addressing(&["fd00::100/64", "fd00:1::100/64"], &["fd00::7"], &["fd00::8"])
    };
    let plan = on_empty_host(&options).unwrap();
    assert_eq!(texts(&plan), ["fd00::100/64", "fd00::7", "fd00::8"]);
    assert_eq!(plan.v6.unwrap().additional, ["fd00:1::100/64".parse().unwrap()]);
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

#[test]
fn contradicting_options_are_errors() {
    let without_v6 = |options: Addressing| Addressing {
        ipv6: Ipv6::Off,
        ..options
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
            addressing(&[], &[], &["10.0.2.15"]),
            "10.0.2.15 is the guest's address and the DNS forwarder's (try: --dns-address ADDR)",
        ),
        (
            Addressing {
                ipv4: Ipv4::Off,
                ..without_v6(Addressing::default())
            },
            "the guest has neither IPv4 nor IPv6",
        ),
    ] {
        let error = on_empty_host(&options).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.status()), (text, 2));
    }
    let many: Vec<String> = (0..40).map(|n| format!("10.9.0.{}/24", n + 10)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let error = on_empty_host(&addressing(&many, &[], &[])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the guest has more than 32 addresses of a family"
    );
}
