//! The guest's address plan, from the options and the host's network.

mod check;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pontoon_engine::address_plan::{AddressPlan, Ipv4Plan, Ipv6Plan, PlannedRoute, SubnetExtent};
use pontoon_process::error::Error;
use pontoon_process::netlink::Netlink;

use super::interface::{HostInterface, NextHop};
use super::network::HostNetwork;
use super::subnets;
use crate::addressing::{AddressSource, Addressing, Ipv4, Ipv6};

pub use check::mappings;

/// An address plan, and the properties of the guest's interface that follow from its source.
#[derive(Clone, Debug)]
pub struct ChosenPlan {
    /// The plan.
    pub plan: AddressPlan,
    /// The interface of the host that was its source.
    pub interface: Option<HostInterface>,
}

/// The gateway of a host whose default route has none: link-local, so that it conflicts with no network (RFC 3927).
const ENGINE_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 2, 1);

/// The DNS forwarder of a guest whose IPv6 gateway is link-local: a local address (RFC 4193) that the guest reaches by its
/// default route.
const ENGINE_V6: Ipv6Addr = Ipv6Addr::new(0xfd70, 0x6f6e, 0x746f, 0, 0, 0, 0, 3);

/// Link-local address of the engine for a guest that has [`Ipv6Plan::ROUTER`] itself.
const OTHER_ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Returns the plan that `options` ask for.
///
/// # Errors
/// An option contradicts another or the host's network; the message names it.
pub fn choose(options: &Addressing, host: &HostNetwork, netlink: &mut Netlink) -> Result<ChosenPlan, Error> {
    let (mut plan, interface) = match &options.source {
        AddressSource::Private => (private(options, host)?, None),
        AddressSource::Host(name) => {
            let interface = HostInterface::read(name.as_deref(), netlink)?;
            (of_interface(options, &interface), Some(interface))
        }
        AddressSource::Auto(name) => {
            let interface = match name {
                Some(_) => Some(HostInterface::read(name.as_deref(), netlink)?),
                None => HostInterface::find(None, netlink)?,
            };
            automatic(options, host, interface)?
        }
    };
    apply(options, &mut plan)?;
    check::options(options)?;
    check::plan(&plan, options)?;
    add_dns_routes(&mut plan);
    Ok(ChosenPlan { plan, interface })
}

/// Returns the plan of [`AddressSource::Auto`] with this interface of the host. If the options contain an
/// IPv6 address, the guest has IPv6 although the interface has none.
fn automatic(
    options: &Addressing,
    host: &HostNetwork,
    interface: Option<HostInterface>,
) -> Result<(AddressPlan, Option<HostInterface>), Error> {
    let Some(interface) = interface else {
        tracing::info!("the host has no default route, so the guest gets private addresses");
        return Ok((private(options, host)?, None));
    };
    let mut plan = of_interface(options, &interface);
    let is_given = options.addresses.iter().any(|net| matches!(net, IpNet::V6(_)));
    let (no_v4, no_v6) = (plan.v4.is_none(), plan.v6.is_none() && is_given);
    if no_v4 || no_v6 {
        let other = private(options, host)?;
        plan.v4 = plan.v4.or(other.v4);
        plan.v6 = plan.v6.or(other.v6.filter(|_| is_given));
    }
    Ok((plan, Some(interface)))
}

/// Returns a plan whose subnets exist only on the guest's link. A family whose address the options contain needs no subnet.
fn private(options: &Addressing, host: &HostNetwork) -> Result<AddressPlan, Error> {
    let given = |v4: bool| {
        let mut addresses = options.addresses.iter();
        addresses.any(|address| matches!(address, IpNet::V4(_)) == v4)
    };
    let subnet = match options.ipv4 {
        Ipv4::Off => None,
        Ipv4::Auto if given(true) => None,
        Ipv4::Auto => Some(None),
        Ipv4::Subnet(subnet) => Some(Some(subnet)),
    };
    let v4 = subnet.map(|given| subnets::choose_v4(given, host)).transpose()?;
    if let Some(v4) = v4.filter(|v4| v4.moved) {
        tracing::info!("the host uses 10.0.2.0/24, so the guest gets {}", v4.net);
    }
    let subnet = match options.ipv6 {
        Ipv6::Off => None,
        Ipv6::Auto if given(false) => None,
        Ipv6::Auto => Some(None),
        Ipv6::Subnet(subnet) => Some(Some(subnet)),
    };
    let v6 = subnet.map(|given| subnets::choose_v6(given, host)).transpose()?;
    if let Some(v6) = v6.filter(|v6| v6.moved) {
        tracing::info!("the host uses fd70:6f6e:746f::/64, so the guest gets {}", v6.net);
    }
    let mut plan = AddressPlan::private(
        v4.map(|v4| Ipv4Plan::private(v4.net)),
        v6.map(|v6| Ipv6Plan::private(v6.net, host.ipv6_default)),
    );
    // Families whose addresses the options contain: gateway and DNS forwarder at the usual places of the subnet.
    if given(true) && options.ipv4 != Ipv4::Off {
        plan.v4 = first(&options.addresses, |net| match net {
            IpNet::V4(net) => Some(net),
            IpNet::V6(_) => None,
        })
        .map(around_v4);
    }
    if given(false) && options.ipv6 != Ipv6::Off {
        plan.v6 = first(&options.addresses, |net| match net {
            IpNet::V6(net) => Some(net),
            IpNet::V4(_) => None,
        })
        .map(|address| around_v6(address, host.ipv6_default));
    }
    Ok(plan)
}

fn first<T>(addresses: &[IpNet], of_family: impl Fn(IpNet) -> Option<T>) -> Option<T> {
    addresses.iter().find_map(|address| of_family(*address))
}

/// Returns the IPv4 side of a plan for a guest with this address: the gateway and the DNS forwarder have the host
/// numbers 2 and 3 in its subnet; if the guest has one of these, number 1 replaces it. If the subnet is too small or
/// link-local, they share a link-local address outside of it.
fn around_v4(address: Ipv4Net) -> Ipv4Plan {
    let nth = |n: u32| Ipv4Addr::from_bits(address.network().to_bits() + n);
    let other_than = |n: u32| if nth(n) == address.addr() { nth(1) } else { nth(n) };
    let has_room = address.prefix_len() <= 29 && !address.addr().is_link_local();
    Ipv4Plan {
        address,
        additional: Vec::new(),
        gateway: if has_room { other_than(2) } else { ENGINE_V4 },
        default_route: true,
        dns: Some(if has_room { other_than(3) } else { ENGINE_V4 }),
    }
}

/// Same as [`around_v4`] for IPv6. If the subnet is too small or link-local, the DNS forwarder has a unique local
/// address.
fn around_v6(address: Ipv6Net, default_route: bool) -> Ipv6Plan {
    let nth = |n: u128| Ipv6Addr::from_bits(address.network().to_bits() + n);
    let other_than = |n: u128| if nth(n) == address.addr() { nth(1) } else { nth(n) };
    let has_room = address.prefix_len() <= 125 && !address.addr().is_unicast_link_local();
    let router = match address.addr() {
        Ipv6Plan::ROUTER => OTHER_ROUTER,
        _ => Ipv6Plan::ROUTER,
    };
    Ipv6Plan {
        address,
        additional: Vec::new(),
        gateway: if has_room { other_than(2) } else { router },
        router,
        default_route,
        dns: Some(if has_room { other_than(3) } else { ENGINE_V6 }),
    }
}

/// Adds a route to each DNS forwarder whose address no subnet and no other route of the guest contains.
fn add_dns_routes(plan: &mut AddressPlan) {
    let v4 = plan
        .v4
        .iter()
        .map(|own| (own.default_route, own.dns.map(IpAddr::V4)));
    let v6 = plan
        .v6
        .iter()
        .map(|own| (own.default_route, own.dns.map(IpAddr::V6)));
    let without_default = v4.chain(v6).filter(|(default_route, _)| !default_route);
    let servers: Vec<IpAddr> = without_default.filter_map(|(_, dns)| dns).collect();
    for dns in servers {
        let is_routed = plan.routes.iter().any(|route| route.destination.contains(&dns));
        if !is_routed && !plan.has_neighbour(dns) {
            plan.routes.push(PlannedRoute {
                destination: IpNet::from(dns),
                gateway: None,
            });
        }
    }
}

/// Returns the plan of a guest with the addresses and routes of an interface of the host. The DNS forwarder has the gateway's
/// address: the host's network has no other address that is surely free.
fn of_interface(options: &Addressing, interface: &HostInterface) -> AddressPlan {
    let v4 = interface.v4.split_first().filter(|_| options.ipv4 != Ipv4::Off);
    let v4 = v4.map(|(address, additional)| {
        let gateway = match interface.gateway_v4 {
            Some(NextHop::Gateway(IpAddr::V4(gateway))) => gateway,
            _ => ENGINE_V4,
        };
        Ipv4Plan {
            address: *address,
            additional: additional_of(options, additional),
            gateway,
            default_route: interface.gateway_v4.is_some(),
            dns: Some(gateway),
        }
    });
    let v6 = interface.v6.split_first().filter(|_| options.ipv6 != Ipv6::Off);
    let v6 = v6.map(|(address, additional)| {
        let gateway = match interface.gateway_v6 {
            Some(NextHop::Gateway(IpAddr::V6(gateway))) => gateway,
            _ => Ipv6Plan::ROUTER,
        };
        Ipv6Plan {
            address: *address,
            additional: additional_of(options, additional),
            gateway,
            router: if gateway.is_unicast_link_local() {
                gateway
            } else {
                Ipv6Plan::ROUTER
            },
            default_route: interface.gateway_v6.is_some(),
            // A resolver's link-local address would need the interface's name in resolv.conf.
            dns: Some(if gateway.is_unicast_link_local() {
                ENGINE_V6
            } else {
                gateway
            }),
        }
    });
    let families = (v4.is_some(), v6.is_some());
    let mut routes = match options.no_host_routes {
        true => Vec::new(),
        false => interface.routes.clone(),
    };
    routes.retain(|route| match route.destination {
        IpNet::V4(_) => families.0,
        IpNet::V6(_) => families.1,
    });
    AddressPlan {
        v4,
        v6,
        extent: SubnetExtent::HostNetwork,
        routes,
    }
}

/// Returns those of the further addresses of an interface that the guest takes over.
fn additional_of<T: Copy>(options: &Addressing, further: &[T]) -> Vec<T> {
    match options.one_host_address {
        true => Vec::new(),
        false => further.to_vec(),
    }
}

/// Replaces the parts of the plan that the options contain.
fn apply(options: &Addressing, plan: &mut AddressPlan) -> Result<(), Error> {
    let absent = |what: &str, value: &dyn std::fmt::Display| {
        let family = if value.to_string().contains(':') {
            "IPv6"
        } else {
            "IPv4"
        };
        Error::new(format!("--{what} {value}: the guest has no {family}")).with_status(2)
    };
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for address in &options.addresses {
        match address {
            IpNet::V4(net) => v4.push(*net),
            IpNet::V6(net) => v6.push(*net),
        }
    }
    if let Some((address, additional)) = v4.split_first() {
        let own = plan.v4.as_mut().ok_or_else(|| absent("address", address))?;
        own.address = *address;
        own.additional = additional.to_vec();
    }
    if let Some((address, additional)) = v6.split_first() {
        let own = plan.v6.as_mut().ok_or_else(|| absent("address", address))?;
        own.address = *address;
        own.additional = additional.to_vec();
    }
    for gateway in &options.gateways {
        match gateway {
            IpAddr::V4(address) => {
                let own = plan.v4.as_mut().ok_or_else(|| absent("gateway", gateway))?;
                own.gateway = *address;
                own.default_route = true;
            }
            IpAddr::V6(address) => {
                let own = plan.v6.as_mut().ok_or_else(|| absent("gateway", gateway))?;
                own.gateway = *address;
                own.default_route = true;
                if address.is_unicast_link_local() {
                    own.router = *address;
                }
            }
        }
    }
    for dns in &options.dns {
        match dns {
            IpAddr::V4(address) => {
                plan.v4.as_mut().ok_or_else(|| absent("dns-address", dns))?.dns = Some(*address);
            }
            IpAddr::V6(address) => {
                plan.v6.as_mut().ok_or_else(|| absent("dns-address", dns))?.dns = Some(*address);
            }
        }
    }
    for route in &options.routes {
        let exists = match route.destination {
            IpNet::V4(_) => plan.v4.is_some(),
            IpNet::V6(_) => plan.v6.is_some(),
        };
        if !exists {
            return Err(absent("route", &route.destination));
        }
        // A route of an option replaces one of the host's interface.
        plan.routes.retain(|other| other.destination != route.destination);
        plan.routes.push(*route);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
