//! Addresses and routes of the host (rtnetlink(7)).

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use pontoon_process::netlink::Netlink;

/// Addresses and routes of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNetwork {
    /// Addresses of the host, each with the prefix length of its network.
    pub addresses: Vec<IpNet>,
    /// Destinations of the host's routes.
    pub routes: Vec<IpNet>,
    /// Addresses and prefixes that a route of type `local` delivers to the host.
    pub local: Vec<IpNet>,
    /// True if the host has an IPv6 default route.
    pub ipv6_default: bool,
}

impl HostNetwork {
    /// Reads the addresses and routes of the network namespace of the netlink socket.
    ///
    /// # Errors
    /// The kernel refuses the request or drops the reply.
    pub fn read(netlink: &mut Netlink) -> io::Result<Self> {
        let mut host = Self {
            addresses: netlink.addresses()?,
            ..Self::default()
        };
        for reply in netlink.dump(RouteNetlinkMessage::GetRoute(RouteMessage::default()))? {
            let RouteNetlinkMessage::NewRoute(route) = reply else {
                continue;
            };
            let Some(destination) = destination(&route) else {
                continue;
            };
            if is_local(&route) {
                host.local.push(destination);
            }
            if route.header.kind != RouteType::Unicast || route.header.table == libc::RT_TABLE_LOCAL {
                continue;
            }
            host.ipv6_default |= matches!(destination, IpNet::V6(net) if net.prefix_len() == 0);
            host.routes.push(destination);
        }
        Ok(host)
    }

    /// Returns true if an address of the host, or the destination of one of its routes, lies in `subnet`.
    pub(super) fn uses(&self, subnet: IpNet) -> bool {
        let routes = self.routes.iter().filter(|route| !is_default(route));
        let addresses = self.addresses.iter();
        addresses.chain(routes).any(|used| overlap(used, &subnet))
    }
}

/// Returns true for 0.0.0.0/0 and ::/0, and for the two halves of either that VPNs install instead.
fn is_default(route: &IpNet) -> bool {
    route.prefix_len() <= 1
}

fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// Returns the destination of a route; `None` for address families other than IPv4 and IPv6.
pub(super) fn destination(route: &RouteMessage) -> Option<IpNet> {
    let address = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    });
    // The message of a default route has no destination attribute.
    let address = address.or(match route.header.address_family {
        AddressFamily::Inet => Some(std::net::Ipv4Addr::UNSPECIFIED.into()),
        AddressFamily::Inet6 => Some(std::net::Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    })?;
    IpNet::new(address, route.header.destination_prefix_length).ok()
}

/// Returns true if the route has the type `local`, so that it delivers to the host itself: each address of the host has
/// such a route, and others may (`ip route add local PREFIX`, anycast addresses of an IPv6 router). Routes in other tables
/// apply only if a policy rule selects them.
pub(super) fn is_local(route: &RouteMessage) -> bool {
    route.header.table == libc::RT_TABLE_LOCAL
        && matches!(route.header.kind, RouteType::Local | RouteType::Anycast)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_contain_the_loopback() {
        let host = HostNetwork::read(&mut Netlink::open().unwrap()).unwrap();
        assert!(host.addresses.contains(&"127.0.0.1/8".parse().unwrap()));
    }
}
