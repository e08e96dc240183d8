//! The engine's configuration: addresses, MTU, published ports, egress rules and limits.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};
use pontoon_wire::Mac;

use crate::bandwidth::Bandwidth;
use crate::egress::Egress;

/// The engine's default Ethernet address: locally administered, with "Pont" in ASCII.
pub const OUR_MAC: Mac = Mac([0x02, 0x50, 0x6f, 0x6e, 0x74, 0x02]);

/// The guest's default Ethernet address.
pub const GUEST_MAC: Mac = Mac([0x02, 0x50, 0x6f, 0x6e, 0x74, 0x0f]);

/// Configuration of an engine, which is complete before the first packet.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses of guest, gateway and DNS forwarder.
    pub addresses: Addresses,
    /// The engine's Ethernet address. The engine answers ARP requests and neighbor solicitations for every address
    /// except the guest's with it.
    pub our_mac: Mac,
    /// The guest's Ethernet address until the first frame; then the engine uses the source address of the guest's
    /// frames.
    pub guest_mac: Mac,
    /// MTU of the link in bytes, which DHCP and router advertisements announce to the guest.
    pub mtu: u16,
    /// Host name that DHCPv4 assigns to the guest.
    pub hostname: Option<String>,
    /// DNS search domains that DHCP and router advertisements announce to the guest.
    pub search: Vec<String>,
    /// Resolvers to which the DNS forwarder sends queries, in order of preference; if empty, there is no forwarder.
    pub resolvers: Vec<SocketAddr>,
    /// Addresses that the engine translates to the host's loopback address (`--host-loopback`).
    pub host_loopback: Vec<IpAddr>,
    /// True if the guest may reach the host's own addresses (`--host-addresses`).
    pub host_addresses: bool,
    /// True if the guest may reach the metadata services of cloud providers (`--metadata`).
    pub metadata: bool,
    /// Egress rules of the user (`--allow`, `--deny`).
    pub egress: Egress,
    /// Ports published at the start, in the order of the host's listeners and UDP sockets.
    pub published: Vec<Published>,
    /// Time after which the engine fails a TCP connect of the guest to a host address; `None` leaves the timeout to the
    /// host's kernel.
    pub connect_timeout: Option<Duration>,
    /// Filter of the datagrams that the guest's UDP endpoints receive.
    pub udp_filter: UdpFilter,
    /// Maximum number of simultaneous flows (`--max-flows`).
    pub max_flows: u32,
    /// Maximum number of UDP ports of the host that the guest's endpoints hold at one time, in each address family
    /// (`--max-udp-ports`).
    pub max_udp_ports: u32,
    /// Maximum number of new flows per second, if limited (`--max-flow-rate`).
    pub max_flow_rate: Option<u32>,
    /// Bandwidth limit of the guest, if there is one (`--max-bandwidth`).
    pub bandwidth: Option<Bandwidth>,
}

/// Addresses of guest, gateway and DNS forwarder on the guest's side of the link.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// IPv4 addresses of guest, gateway and DNS forwarder.
    pub v4: V4,
    /// IPv6 addresses of guest, gateway and DNS forwarder; `None` if IPv6 is disabled.
    pub v6: Option<V6>,
}

/// IPv4 addresses on the guest's side of the link.
#[derive(Clone, Copy, Debug)]
pub struct V4 {
    /// The guest's IPv4 subnet.
    pub subnet: Ipv4Net,
    /// IPv4 address of the gateway. Packets to it are sent to the host, if that is permitted.
    pub gateway: Ipv4Addr,
    /// IPv4 address of the DNS forwarder.
    pub dns: Ipv4Addr,
    /// IPv4 address of the guest.
    pub guest: Ipv4Addr,
}

/// IPv6 addresses on the guest's side of the link.
#[derive(Clone, Copy, Debug)]
pub struct V6 {
    /// The guest's IPv6 subnet, a /64.
    pub subnet: Ipv6Net,
    /// IPv6 address of the gateway. Packets to it are sent to the host, if that is permitted.
    pub gateway: Ipv6Addr,
    /// The engine's link-local address, the source address of its router advertisements.
    pub router: Ipv6Addr,
    /// IPv6 address of the DNS forwarder.
    pub dns: Ipv6Addr,
    /// IPv6 address of the guest.
    pub guest: Ipv6Addr,
    /// True if the host has an IPv6 default route, so that the engine advertises itself to the guest as a default
    /// router.
    pub default_route: bool,
}

/// Transport protocols of published ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// A published TCP port.
    Tcp,
    /// A published UDP port.
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

/// A published port: a listening or bound socket on the host whose clients the engine forwards to a port of the guest.
/// No two published ports have the same protocol and host address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Transport protocol of the published port.
    pub protocol: Protocol,
    /// Host address and port to which the host socket is bound.
    pub host: SocketAddr,
    /// Port of the guest to which clients are forwarded, at the guest's address of the same family.
    pub guest_port: u16,
}

impl Published {
    /// Returns the key under which clients of this port are counted against `--max-flows`. It is computed from the host
    /// address and port, because an index in the configuration would differ between workers: only the first worker has
    /// published UDP ports. Ports of the same address have different keys.
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

/// The senders whose datagrams a guest's UDP endpoint receives (RFC 4787 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpFilter {
    /// Datagrams of all senders (endpoint-independent filtering).
    Endpoint,
    /// Addresses to which the endpoint has sent a datagram, until 120 s after the last datagram in either direction
    /// (address-dependent filtering).
    Address,
    /// Addresses and ports to which the endpoint has sent a datagram, for as long as with [`Self::Address`] (address-
    /// and port-dependent filtering).
    AddressPort,
}

impl V4 {
    /// The default IPv4 subnet, 10.0.2.0/24.
    pub const USUAL: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 2, 0), 24);

    /// Returns the default addresses of gateway, DNS forwarder and guest in `subnet`, whose prefix has at most 27 bits.
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
    /// The default IPv6 subnet, a unique local /64 with "ponto" in ASCII behind fd.
    pub const USUAL: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfd70, 0x6f6e, 0x746f, 0, 0, 0, 0, 0), 64);

    /// Returns the default addresses of gateway, DNS forwarder and guest in `subnet`, a /64.
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
    /// Returns the gateway's address in the family of `like`; `None` if IPv6 is disabled.
    #[must_use]
    pub fn gateway(&self, like: IpAddr) -> Option<IpAddr> {
        match like {
            IpAddr::V4(_) => Some(self.v4.gateway.into()),
            IpAddr::V6(_) => self.v6.map(|v6| v6.gateway.into()),
        }
    }

    /// Returns the guest's address in the family of `like`; `None` if IPv6 is disabled.
    #[must_use]
    pub fn guest(&self, like: IpAddr) -> Option<IpAddr> {
        match like {
            IpAddr::V4(_) => Some(self.v4.guest.into()),
            IpAddr::V6(_) => self.v6.map(|v6| v6.guest.into()),
        }
    }

    /// Returns true if `address` is an address of the DNS forwarder.
    #[must_use]
    pub fn is_dns(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => v4 == self.v4.dns,
            IpAddr::V6(v6) => self.v6.is_some_and(|own| own.dns == v6),
        }
    }

    /// Returns true if `address` is in a subnet of the guest's side, or is an IPv6 link-local address.
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
