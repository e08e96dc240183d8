//! Checks of an address plan: each address is one that a host can have, and has one owner only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use pontoon_engine::address_plan::AddressPlan;
use pontoon_process::error::Error;

use crate::addressing::{AddressSource, Addressing, Ipv4, Ipv6};

/// Limit on the guest's addresses of each family.
const MOST_ADDRESSES: usize = 32;

/// Checks that no two options contradict each other.
pub(super) fn options(options: &Addressing) -> Result<(), Error> {
    for (place, address) in options.addresses.iter().enumerate() {
        let mut earlier = options.addresses.iter().take(place);
        if earlier.any(|other| other.addr() == address.addr()) {
            let wrong = format!("--address {} is given twice", address.addr());
            return Err(misused(wrong).advise("one of them"));
        }
        let subnet = match (address, options.ipv4, options.ipv6) {
            (IpNet::V4(_), Ipv4::Subnet(subnet), _) => IpNet::V4(subnet),
            (IpNet::V6(_), _, Ipv6::Subnet(subnet)) => IpNet::V6(subnet),
            _ => continue,
        };
        let family = if subnet.addr().is_ipv4() { "ipv4" } else { "ipv6" };
        let wrong = format!("--{family} {subnet} and --address {address} exclude each other");
        return Err(misused(wrong).advise("one of them"));
    }
    for (place, route) in options.routes.iter().enumerate() {
        let mut earlier = options.routes.iter().take(place);
        if earlier.any(|other| other.destination == route.destination) {
            let wrong = format!("--route {} is given twice", route.destination);
            return Err(misused(wrong).advise("one of them"));
        }
    }
    Ok(())
}

/// Checks the addresses of the plan. Addresses that are taken from the host are only compared with the others.
pub(super) fn plan(plan: &AddressPlan, options: &Addressing) -> Result<(), Error> {
    if plan.v4.is_none() && plan.v6.is_none() {
        return Err(match &options.source {
            AddressSource::Private => misused("the guest has neither IPv4 nor IPv6".to_owned()),
            AddressSource::Host(_) | AddressSource::Auto(_) => {
                Error::new("the host's interface has no address of a family that the guest has")
                    .advise("--addressing host:IFACE, or --addressing private")
            }
        });
    }
    let v4 = plan.v4.as_ref().map_or(0, |own| own.addresses().count());
    let v6 = plan.v6.as_ref().map_or(0, |own| own.addresses().count());
    if v4.max(v6) > MOST_ADDRESSES {
        let wrong = format!("the guest has more than {MOST_ADDRESSES} addresses of a family");
        return Err(misused(wrong).advise("--address ADDR/LEN for those that it needs"));
    }
    for address in &options.addresses {
        let advice = format!("another address of {}", address.trunc());
        not_subnet_wide(plan, "--address", address.addr()).map_err(|error| error.advise(advice))?;
    }
    let given = [("--gateway", &options.gateways), ("--dns-address", &options.dns)];
    for (option, addresses) in given {
        for address in addresses {
            not_subnet_wide(plan, option, *address)?;
        }
    }
    let gateways = [
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    ];
    for gateway in gateways.into_iter().filter_map(|like| plan.gateway(like)) {
        not_guests(plan, gateway, "the gateway's").map_err(|error| error.advise("--gateway ADDR"))?;
    }
    if let Some(v6) = &plan.v6 {
        let advice = "--gateway with a link-local address";
        not_guests(plan, v6.router.into(), "the router's").map_err(|error| error.advise(advice))?;
    }
    for dns in plan.dns() {
        not_guests(plan, dns, "the DNS forwarder's").map_err(|error| error.advise("--dns-address ADDR"))?;
    }
    for route in &options.routes {
        if let Some(gateway) = route.gateway {
            let owner = format!("the gateway's of --route {}", route.destination);
            not_guests(plan, gateway, &owner)?;
        }
    }
    Ok(())
}

/// Checks addresses that stand for the host: those of its loopback, and those of the host itself.
///
/// # Errors
/// The guest cannot reach such an address, or two options map it.
pub fn mappings(plan: &AddressPlan, loopback: &[IpAddr], host: &[IpAddr]) -> Result<(), Error> {
    let loopback_option = loopback.iter().map(|address| ("--host-loopback", *address));
    let host_option = host.iter().map(|address| ("--map-host", *address));
    for (option, address) in loopback_option.chain(host_option) {
        if plan.gateway(address).is_none() {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(misused(format!("{option} {address}: the guest has no {family}")));
        }
        not_subnet_wide(plan, option, address)?;
        not_guests(plan, address, &format!("that of {option}"))?;
    }
    match loopback.iter().find(|address| host.contains(address)) {
        None => Ok(()),
        Some(address) => {
            let wrong = format!("--host-loopback and --map-host both map {address}");
            Err(misused(wrong).advise("another address"))
        }
    }
}

fn not_subnet_wide(plan: &AddressPlan, option: &str, address: IpAddr) -> Result<(), Error> {
    if !plan.is_subnet_wide(address) {
        return Ok(());
    }
    let kind = match address {
        IpAddr::V4(_) => "the network or broadcast address",
        IpAddr::V6(_) => "the anycast address of the routers",
    };
    Err(misused(format!(
        "{option} {address} is {kind} of the guest's subnet"
    )))
}

fn not_guests(plan: &AddressPlan, address: IpAddr, owner: &str) -> Result<(), Error> {
    match plan.is_guest(address) {
        false => Ok(()),
        true => Err(misused(format!("{address} is the guest's address and {owner}"))),
    }
}

fn misused(text: String) -> Error {
    Error::new(text).with_status(2)
}
