//! The engine's configuration: addresses, MTU, published ports, rules and limits.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};
use pontoon_wire::Mac;

use crate::bandwidth::Bandwidth;
use crate::egress::Egress;

/// The engine's default Ethernet address: locally administered, "Pont" in ASCII.
pub const OUR_MAC: Mac = Mac([0x02, 0x50, 0x6f, 0x6e, 0x74, 0x02]);

/// The guest's default Ethernet address.
pub const GUEST_MAC: Mac = Mac([0x02, 0x50, 0x6f, 0x6e, 0x74, 0x0f]);

/// Everything that is decided before the first packet.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses on the guest's side.
    pub addresses: Addresses,
    /// The engine's Ethernet address, to which every IP address but the guest's resolves.
    pub our_mac: Mac,
    /// The guest's Ethernet address (a link's frames may correct it).
    pub guest_mac: Mac,
    /// MTU that the local services announce.
    pub mtu: u16,
    /// Name that DHCP hands to the guest.
    pub hostname: Option<String>,
    /// Search domains that DHCP and router advertisements hand to the guest.
    pub search: Vec<String>,
    /// Upstream resolvers of the DNS forwarder, in order of preference; empty: no forwarder.
    pub resolvers: Vec<SocketAddr>,
    /// Addresses that reach the host's loopback (`--host-loopback`).
    pub host_loopback: Vec<IpAddr>,
    /// The host's own addresses may be reached (`--host-addresses`).
    pub host_addresses: bool,
    /// Metadata services of clouds may be reached (`--metadata`).
    pub metadata: bool,
    /// The user's rules (`--allow`, `--deny`).
    pub egress: Egress,
    /// Ports that are published from the start, in the order of the host's listeners and UDP sockets.
    pub published: Vec<Published>,
    /// The time after which a connect fails; `None` leaves it to the host.
    pub connect_timeout: Option<Duration>,
    /// The filter of a guest's UDP endpoint.
    pub udp_filter: UdpFilter,
    /// Flows at one time.
    pub max_flows: u32,
    /// UDP ports of the host that the guest's endpoints may hold at one time, in each family.
    pub max_udp_ports: u32,
    /// New flows a second, if limited.
    pub max_flow_rate: Option<u32>,
    /// The bandwidth limit, if any.
    pub bandwidth: Option<Bandwidth>,
}

/// Addresses on the guest's side of the link.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// IPv4.
    pub v4: V4,
    /// IPv6, unless switched off.
    pub v6: Option<V6>,
}

/// IPv4 side.
#[derive(Clone, Copy, Debug)]
pub struct V4 {
    /// The guest's subnet.
    pub subnet: Ipv4Net,
    /// Gateway, which also stands for the host.
    pub gateway: Ipv4Addr,
    /// DNS forwarder.
    pub dns: Ipv4Addr,
    /// The guest.
    pub guest: Ipv4Addr,
}

/// IPv6 side.
#[derive(Clone, Copy, Debug)]
pub struct V6 {
    /// The guest's subnet (a /64).
    pub subnet: Ipv6Net,
    /// Gateway, which also stands for the host.
    pub gateway: Ipv6Addr,
    /// The engine's link-local address: the router in advertisements.
    pub router: Ipv6Addr,
    /// DNS forwarder.
    pub dns: Ipv6Addr,
    /// The guest.
    pub guest: Ipv6Addr,
    /// The host has an IPv6 default route, so that the engine advertises itself as default router.
    pub default_route: bool,
}

/// Transport protocols that can be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// One published port: one host socket. No two have the same protocol and host address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Address and port that the host socket is bound to.
    pub host: SocketAddr,
    /// Port of the guest (its address in the same family).
    pub guest_port: u16,
}

impl Published {
    /// Returns the key under which clients of this port are counted against `--max-flows`. It is computed from the host's
    /// address and port, as a place in the configuration differs between workers: only the first worker has UDP ports.
    /// Ports of one address have different keys.
    #[must_use]
    pub(crate) fn share_key(&self) -> u32 {
        let fnv_1a = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let address = match self.host.ip() {
            IpAddr::V4(v4) => v4.octets().iter().fold(0x811c_9dc5, fnv_1a),
            IpAddr::V6(v6) => v6.octets().iter().fold(0x811c_9dc5, fnv_1a),
        };
        address.wrapping_add(self.host.port().into())
    }
}

/// The senders that may reach a guest's UDP endpoint (RFC 4787 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpFilter {
    /// All senders.
    Endpoint,
    /// An address that the guest sent to, less than 120 s after the last datagram in either direction.
    Address,
    /// An address and port that the guest sent to, as for [`Self::Address`].
    AddressPort,
}

impl V4 {
    /// The usual subnet.
    pub const USUAL: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 2, 0), 24);

    /// The usual addresses in `subnet`, which has 27 bits of prefix at most.
    #[must_use]
    pub fn of(subnet: Ipv4Net) -> Self {
        let nth = |n: u32| Ipv4Addr::from_bits(subnet.network().to_bits() + n);
        Self {
            subnet,
            gateway: nth(2),
            dns: nth(3),
            guest: nth(15),
        }
    }
}

impl V6 {
    /// The usual subnet: "ponto" in ASCII, behind fd.
    pub const USUAL: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfd70, 0x6f6e, 0x746f, 0, 0, 0, 0, 0), 64);

    /// The usual addresses in `subnet`, a /64.
    #[must_use]
    pub fn of(subnet: Ipv6Net, default_route: bool) -> Self {
        let nth = |n: u128| Ipv6Addr::from_bits(subnet.network().to_bits() + n);
        Self {
            subnet,
            gateway: nth(2),
            router: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2),
            dns: nth(3),
            guest: nth(0x15),
            default_route,
        }
    }
}

impl Addresses {
    /// The gateway of `like`'s family.
    #[must_use]
    pub fn gateway(&self, like: IpAddr) -> Option<IpAddr> {
        match like {
            IpAddr::V4(_) => Some(self.v4.gateway.into()),
            IpAddr::V6(_) => self.v6.map(|v6| v6.gateway.into()),
        }
    }

    /// The guest's address in `like`'s family.
    #[must_use]
    pub fn guest(&self, like: IpAddr) -> Option<IpAddr> {
        match like {
            IpAddr::V4(_) => Some(self.v4.guest.into()),
            IpAddr::V6(_) => self.v6.map(|v6| v6.guest.into()),
        }
    }

    /// Returns true if `address` is the DNS forwarder's.
    #[must_use]
    pub fn is_dns(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => v4 == self.v4.dns,
            IpAddr::V6(v6) => self.v6.is_some_and(|own| own.dns == v6),
        }
    }

    /// Returns true if `address` lies in a subnet of the guest's side, or is link-local there.
    #[must_use]
    pub fn is_local(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.v4.subnet.contains(&v4),
            IpAddr::V6(v6) => self
                .v6
                .is_some_and(|own| own.subnet.contains(&v6) || own.router == v6),
        }
    }
}
