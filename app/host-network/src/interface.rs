//! An interface of the host whose addresses and routes a guest takes over.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use pontoon_engine::address_plan::PlannedRoute;
use pontoon_process::error::{Context as _, Error};
use pontoon_process::netlink::{self, Netlink};

use super::network::destination;

/// Addresses, routes and MTU of an interface of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostInterface {
    /// Its name.
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Its IPv4 addresses, primary ones first.
    pub v4: Vec<Ipv4Net>,
    /// Its global IPv6 addresses, preferred and permanent ones first.
    pub v6: Vec<Ipv6Net>,
    /// The next hop of its IPv4 default route.
    pub gateway_v4: Option<NextHop>,
    /// The next hop of its IPv6 default route.
    pub gateway_v6: Option<NextHop>,
    /// Its other routes in the main table, without those that the kernel derives from these addresses.
    pub routes: Vec<PlannedRoute>,
}

/// The next hop of a default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// A router.
    Gateway(IpAddr),
    /// None: the interface has no neighbours (a tunnel).
    Interface,
}

/// A route of the main table through one interface.
struct Route {
    destination: IpNet,
    gateway: Option<IpAddr>,
    interface: u32,
    metric: u32,
    derived: bool,
}

impl HostInterface {
    /// Reads the interface with that name; without a name, the one with the default route: of IPv4, otherwise of IPv6.
    ///
    /// # Errors
    /// There is no such interface, or the kernel's.
    pub fn read(name: Option<&str>, netlink: &mut Netlink) -> Result<Self, Error> {
        let none = || match name {
            Some(name) => Error::new(format!("the host has no interface {name}")).advise("ip link"),
            None => Error::new("cannot take over the host's addresses: the host has no default route")
                .advise("--addressing host:IFACE, or --addressing private"),
        };
        Self::find(name, netlink)?.ok_or_else(none)
    }

    /// Same as [`Self::read`]; returns `None` if there is no such interface.
    ///
    /// # Errors
    /// The kernel's.
    pub fn find(name: Option<&str>, netlink: &mut Netlink) -> Result<Option<Self>, Error> {
        let failed = "cannot read the host's interfaces";
        let routes = routes(netlink).context(failed)?;
        let links = netlink
            .dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))
            .context(failed)?;
        let links: Vec<LinkMessage> = links
            .into_iter()
            .filter_map(|reply| match reply {
                RouteNetlinkMessage::NewLink(link) => Some(link),
                _ => None,
            })
            .collect();
        let link = match name {
            Some(name) => links.iter().find(|link| name_of(link) == Some(name)),
            None => default_interface(&routes)
                .and_then(|index| links.iter().find(|link| link.header.index == index)),
        };
        let Some(link) = link else {
            return Ok(None);
        };
        let mut interface = Self::of_link(link);
        let addresses = netlink
            .dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))
            .context(failed)?;
        interface.add_addresses(&addresses, link.header.index);
        interface.add_routes(&routes, link.header.index);
        Ok(Some(interface))
    }

    fn of_link(link: &LinkMessage) -> Self {
        let mtu = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        });
        Self {
            name: name_of(link).unwrap_or_default().to_owned(),
            mtu: mtu.unwrap_or(1_500),
            ..Self::default()
        }
    }

    /// Adds the routes through the interface with index `index`. `routes` are sorted by metric; of several routes to
    /// one destination, the first is used. Routes to the subnets of the guest's addresses are omitted, because the
    /// guest's kernel adds them itself. It adds no route to the peer of an address, because the guest's address has no
    /// peer.
    fn add_routes(&mut self, routes: &[Route], index: u32) {
        let v4 = self.v4.iter().map(|net| IpNet::V4(net.trunc()));
        let subnets: Vec<IpNet> = v4
            .chain(self.v6.iter().map(|net| IpNet::V6(net.trunc())))
            .collect();
        for route in routes.iter().filter(|route| route.interface == index) {
            if route.destination.prefix_len() > 0 {
                let is_derived = route.derived && subnets.contains(&route.destination);
                let mut earlier = self.routes.iter();
                if !is_derived && earlier.all(|other| other.destination != route.destination) {
                    self.routes.push(PlannedRoute {
                        destination: route.destination,
                        gateway: route.gateway,
                    });
                }
                continue;
            }
            let hop = route.gateway.map_or(NextHop::Interface, NextHop::Gateway);
            match route.destination {
                IpNet::V4(_) => self.gateway_v4 = self.gateway_v4.or(Some(hop)),
                IpNet::V6(_) => self.gateway_v6 = self.gateway_v6.or(Some(hop)),
            }
        }
    }

    fn add_addresses(&mut self, addresses: &[RouteNetlinkMessage], index: u32) {
        let mut later = Vec::new();
        for reply in addresses {
            let RouteNetlinkMessage::NewAddress(message) = reply else {
                continue;
            };
            // Link-local and host-scoped addresses mean nothing on the guest's link.
            if message.header.index != index || message.header.scope != AddressScope::Universe {
                continue;
            }
            let Some(address) = netlink::address(reply) else {
                continue;
            };
            match address {
                // If the address has a peer, the prefix length is that of the peer.
                IpNet::V4(net) if has_peer(message) => self.v4.push(net.addr().into()),
                IpNet::V4(net) => self.v4.push(net),
                IpNet::V6(net) if is_stable(message) => self.v6.push(net),
                IpNet::V6(net) => later.push(net),
            }
        }
        self.v6.extend(later);
    }
}

/// Returns true if the address has a peer: the address of the other end of a point-to-point link.
fn has_peer(message: &AddressMessage) -> bool {
    let find = |of: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(of);
    let own = find(|attribute| match attribute {
        AddressAttribute::Local(own) => Some(*own),
        _ => None,
    });
    let peer = find(|attribute| match attribute {
        AddressAttribute::Address(peer) => Some(*peer),
        _ => None,
    });
    own.is_some() && own != peer
}

/// Returns true if an IPv6 address is permanent and preferred: neither temporary (RFC 8981) nor deprecated nor tentative.
fn is_stable(message: &AddressMessage) -> bool {
    let unstable = AddressFlags::Secondary | AddressFlags::Deprecated | AddressFlags::Tentative;
    message.attributes.iter().all(|attribute| match attribute {
        AddressAttribute::Flags(flags) => !flags.intersects(unstable),
        _ => true,
    })
}

/// Reads the unicast routes of the main table, those with the lowest metric first.
fn routes(netlink: &mut Netlink) -> io::Result<Vec<Route>> {
    let replies = netlink.dump(RouteNetlinkMessage::GetRoute(RouteMessage::default()))?;
    let mut routes: Vec<Route> = replies
        .iter()
        .filter_map(|reply| match reply {
            RouteNetlinkMessage::NewRoute(route) => main_route(route),
            _ => None,
        })
        .collect();
    routes.sort_by_key(|route| route.metric);
    Ok(routes)
}

fn main_route(message: &RouteMessage) -> Option<Route> {
    use netlink_packet_route::route::{RouteHeader, RouteProtocol};
    let is_main = message.header.table == RouteHeader::RT_TABLE_MAIN
        || message
            .attributes
            .iter()
            .any(|attribute| matches!(attribute, RouteAttribute::Table(table) if *table == u32::from(RouteHeader::RT_TABLE_MAIN)));
    if message.header.kind != RouteType::Unicast || !is_main {
        return None;
    }
    let mut route = Route {
        destination: destination(message)?,
        gateway: None,
        interface: 0,
        metric: 0,
        derived: message.header.protocol == RouteProtocol::Kernel,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Gateway(gateway) => route.gateway = ip(gateway),
            RouteAttribute::Oif(index) => route.interface = *index,
            RouteAttribute::Priority(metric) => route.metric = *metric,
            // Of several next hops, the first: the guest has one interface.
            RouteAttribute::MultiPath(hops) => {
                let hop = hops.first()?;
                route.interface = hop.interface_index;
                route.gateway = hop.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Gateway(gateway) => ip(gateway),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    // ff00::/8 and fe80::/64 exist on every interface.
    let local = matches!(route.destination, IpNet::V6(net) if net.network().is_multicast()
        || net.network().is_unicast_link_local());
    (route.interface != 0 && !local).then_some(route)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) if *v6 != Ipv6Addr::UNSPECIFIED => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

fn default_interface(routes: &[Route]) -> Option<u32> {
    let of = |v4: bool| {
        let mut defaults = routes.iter();
        defaults.find(|route| {
            route.destination.prefix_len() == 0 && matches!(route.destination, IpNet::V4(_)) == v4
        })
    };
    of(true).or_else(|| of(false)).map(|route| route.interface)
}

fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}
