//! The address plan: addresses and routes of the guest's link.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Addresses and routes of the guest's link.
#[derive(Clone, Debug)]
pub struct AddressPlan {
    /// The IPv4 side; `None` if the guest has no IPv4.
    pub v4: Option<Ipv4Plan>,
    /// The IPv6 side; `None` if the guest has no IPv6.
    pub v6: Option<Ipv6Plan>,
    /// The extent of the guest's subnets.
    pub extent: SubnetExtent,
    /// Routes besides the default route and the guest's subnets. The guest's kernel or DHCP client installs them; the
    /// engine forwards every destination alike.
    pub routes: Vec<PlannedRoute>,
}

/// The IPv4 side of a plan.
#[derive(Clone, Debug)]
pub struct Ipv4Plan {
    /// The guest's address and the prefix of its subnet. DHCP leases this address, and clients of published ports are
    /// sent to it.
    pub address: Ipv4Net,
    /// Further addresses of the guest, with the prefixes of their subnets.
    pub additional: Vec<Ipv4Net>,
    /// The router, which is also the source of the engine's own packets.
    pub gateway: Ipv4Addr,
    /// The guest has a default route through the gateway.
    pub default_route: bool,
    /// Address of the DNS forwarder, on any subnet; `None` if there is no forwarder.
    pub dns: Option<Ipv4Addr>,
}

/// The IPv6 side of a plan.
#[derive(Clone, Debug)]
pub struct Ipv6Plan {
    /// The guest's address and the prefix of its subnet. DHCPv6 leases this address, router advertisements announce the
    /// prefix if it is a /64, and clients of published ports are sent to it.
    pub address: Ipv6Net,
    /// Further addresses of the guest, with the prefixes of their subnets.
    pub additional: Vec<Ipv6Net>,
    /// The router's address in the guest's routes.
    pub gateway: Ipv6Addr,
    /// The engine's link-local address: the source of router advertisements.
    pub router: Ipv6Addr,
    /// The guest has a default route through the gateway, and the engine advertises itself as default router.
    pub default_route: bool,
    /// Address of the DNS forwarder, on any subnet; `None` if there is no forwarder.
    pub dns: Option<Ipv6Addr>,
}

/// The extent of the guest's subnets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubnetExtent {
    /// The subnets exist only on the guest's link: no other host has an address of them.
    Link,
    /// The subnets are those of the host's network: their other addresses are forwarded.
    HostNetwork,
}

/// A route of the guest through a gateway on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRoute {
    /// Destinations.
    pub destination: IpNet,
    /// The next hop, of the same family; `None`: the destinations are on the link.
    pub gateway: Option<IpAddr>,
}

impl Ipv4Plan {
    /// The usual subnet.
    pub const USUAL: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 2, 0), 24);

    /// Returns the usual addresses in `subnet`, whose prefix length is at most 27: gateway 2, DNS forwarder 3, guest 15.
    #[must_use]
    pub fn private(subnet: Ipv4Net) -> Self {
        let nth = |n: u32| Ipv4Addr::from_bits(subnet.network().to_bits() + n);
        Self {
            address: Ipv4Net::new_assert(nth(15), subnet.prefix_len()),
            additional: Vec::new(),
            gateway: nth(2),
            default_route: true,
            dns: Some(nth(3)),
        }
    }

    /// Returns all addresses of the guest with their prefixes, the first one first.
    pub fn addresses(&self) -> impl Iterator<Item = Ipv4Net> {
        core::iter::once(self.address).chain(self.additional.iter().copied())
    }

    /// Returns true if `address` is the gateway's or the DNS forwarder's.
    #[must_use]
    pub fn is_engine(&self, address: Ipv4Addr) -> bool {
        address == self.gateway || Some(address) == self.dns
    }
}

impl Ipv6Plan {
    /// The usual subnet: "ponto" in ASCII, behind fd.
    pub const USUAL: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfd70, 0x6f6e, 0x746f, 0, 0, 0, 0, 0), 64);

    /// The engine's usual link-local address.
    pub const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

    /// Returns the usual addresses in `subnet`, a /64: gateway `::2`, DNS forwarder `::3`, guest `::15`.
    #[must_use]
    pub fn private(subnet: Ipv6Net, default_route: bool) -> Self {
        let nth = |n: u128| Ipv6Addr::from_bits(subnet.network().to_bits() + n);
        Self {
            address: Ipv6Net::new_assert(nth(0x15), subnet.prefix_len()),
            additional: Vec::new(),
            gateway: nth(2),
            router: Self::ROUTER,
            default_route,
            dns: Some(nth(3)),
        }
    }

    /// Returns all addresses of the guest with their prefixes, the first one first.
    pub fn addresses(&self) -> impl Iterator<Item = Ipv6Net> {
        core::iter::once(self.address).chain(self.additional.iter().copied())
    }

    /// Returns true if `address` is one of the router's or the DNS forwarder's.
    #[must_use]
    pub fn is_engine(&self, address: Ipv6Addr) -> bool {
        address == self.gateway || address == self.router || Some(address) == self.dns
    }
}

impl AddressPlan {
    /// Returns the plan with the usual subnets and addresses of both families.
    #[must_use]
    pub fn usual(default_route_v6: bool) -> Self {
        let v6 = Ipv6Plan::private(Ipv6Plan::USUAL, default_route_v6);
        Self::private(Some(Ipv4Plan::private(Ipv4Plan::USUAL)), Some(v6))
    }

    /// Returns a plan whose subnets exist only on the guest's link.
    #[must_use]
    pub fn private(v4: Option<Ipv4Plan>, v6: Option<Ipv6Plan>) -> Self {
        Self {
            v4,
            v6,
            extent: SubnetExtent::Link,
            routes: Vec::new(),
        }
    }

    /// Returns the gateway in `like`'s family.
    #[must_use]
    pub fn gateway(&self, like: IpAddr) -> Option<IpAddr> {
        match like {
            IpAddr::V4(_) => self.v4.as_ref().map(|v4| v4.gateway.into()),
            IpAddr::V6(_) => self.v6.as_ref().map(|v6| v6.gateway.into()),
        }
    }

    /// Returns the guest's first address in `like`'s family.
    #[must_use]
    pub fn guest(&self, like: IpAddr) -> Option<IpAddr> {
        match like {
            IpAddr::V4(_) => self.v4.as_ref().map(|v4| v4.address.addr().into()),
            IpAddr::V6(_) => self.v6.as_ref().map(|v6| v6.address.addr().into()),
        }
    }

    /// Returns the addresses of the DNS forwarder.
    pub fn dns(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.v4.as_ref().and_then(|v4| v4.dns);
        let v6 = self.v6.as_ref().and_then(|v6| v6.dns);
        v4.map(IpAddr::V4).into_iter().chain(v6.map(IpAddr::V6))
    }

    /// Returns true if `address` is the DNS forwarder's.
    #[must_use]
    pub fn is_dns(&self, address: IpAddr) -> bool {
        self.dns().any(|dns| dns == address)
    }

    /// Returns true if `address` is one of the engine's own: the gateway's, the router's or the DNS forwarder's. In a
    /// plan of the host's network, the gateway is another host.
    #[must_use]
    pub fn is_engine(&self, address: IpAddr) -> bool {
        let is_gateway = self.extent == SubnetExtent::Link && self.gateway(address) == Some(address);
        is_gateway || self.is_dns(address) || self.is_router(address)
    }

    /// Returns true if `address` is the link-local address from which the engine sends router advertisements.
    fn is_router(&self, address: IpAddr) -> bool {
        self.v6.as_ref().is_some_and(|own| own.router == address)
    }

    /// Returns true if `address` is one of the guest's.
    #[must_use]
    pub fn is_guest(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => {
                let own = self.v4.as_ref();
                own.is_some_and(|own| own.addresses().any(|net| net.addr() == v4))
            }
            IpAddr::V6(v6) => {
                let own = self.v6.as_ref();
                own.is_some_and(|own| own.addresses().any(|net| net.addr() == v6))
            }
        }
    }

    /// Returns true if one of the guest's subnets contains `address`.
    #[must_use]
    pub fn has_neighbour(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => {
                let own = self.v4.as_ref();
                own.is_some_and(|own| own.addresses().any(|net| net.contains(&v4)))
            }
            // Each interface has a link-local subnet.
            IpAddr::V6(v6) => {
                let own = self.v6.as_ref();
                own.is_some_and(|own| {
                    v6.is_unicast_link_local() || own.addresses().any(|net| net.contains(&v6))
                })
            }
        }
    }

    /// Returns true if no host can have `address`: it is the network or broadcast address of one of the guest's IPv4
    /// subnets, or the subnet-router anycast address of an IPv6 subnet (RFC 4291 section 2.6.1). Subnets of two addresses
    /// and of one have none of these (RFC 3021, RFC 6164).
    #[must_use]
    pub fn is_subnet_wide(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => {
                let is_wide =
                    |net: Ipv4Net| net.prefix_len() < 31 && [net.network(), net.broadcast()].contains(&v4);
                self.v4.iter().flat_map(Ipv4Plan::addresses).any(is_wide)
            }
            IpAddr::V6(v6) => {
                let is_wide = |net: Ipv6Net| net.prefix_len() < 127 && net.network() == v6;
                self.v6.iter().flat_map(Ipv6Plan::addresses).any(is_wide)
            }
        }
    }

    /// Returns true if `address` belongs to the guest's link alone: it is the guest's or the router's, or in a private plan the
    /// DNS forwarder's or one of a subnet.
    #[must_use]
    pub fn is_link_only(&self, address: IpAddr) -> bool {
        let in_subnet = match self.extent {
            SubnetExtent::HostNetwork => self.is_guest(address),
            SubnetExtent::Link => self.has_neighbour(address),
        };
        let is_dns = self.extent == SubnetExtent::Link && self.is_dns(address);
        in_subnet || is_dns || self.is_router(address)
    }
}
