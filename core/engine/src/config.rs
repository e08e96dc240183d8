//! The engine's configuration: addresses, MTU, published ports, egress rules and limits.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU32;
use core::time::Duration;
use std::sync::Arc;

use pontoon_wire::Mac;

use crate::address_plan::AddressPlan;
use crate::bandwidth::Bandwidth;
use crate::egress::Egress;
use crate::policy::GuestForward;
use crate::proxy::Proxy;
use crate::state::{record, record_enum};

/// The engine's default Ethernet address: locally administered, with "Pont" in ASCII.
pub const OUR_MAC: Mac = Mac([0x02, 0x50, 0x6f, 0x6e, 0x74, 0x02]);

/// The guest's default Ethernet address.
pub const GUEST_MAC: Mac = Mac([0x02, 0x50, 0x6f, 0x6e, 0x74, 0x0f]);

/// Configuration of an engine, which is complete before the first packet.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses and routes of the guest's link.
    pub plan: AddressPlan,
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
    /// Fully qualified domain name that DHCP and DHCPv6 hand to the guest.
    pub fqdn: Option<String>,
    /// Protocols and services that the guest does not have.
    pub disabled: ServiceSet,
    /// DNS search domains that DHCP and router advertisements announce to the guest.
    pub search: Vec<String>,
    /// Resolvers to which the DNS forwarder sends queries, in order of preference; if empty, there is no forwarder.
    pub resolvers: Vec<SocketAddr>,
    /// Addresses that the engine translates to the host's loopback address (`--host-loopback`).
    pub host_loopback: Vec<IpAddr>,
    /// Addresses that reach the host at the address from which it sends to other hosts (`--map-host`).
    pub mapped_host: Vec<IpAddr>,
    /// The addresses from which the host sends to other hosts: IPv4, IPv6.
    pub host: [Option<IpAddr>; 2],
    /// True if the guest may reach the host's own addresses (`--host-addresses`).
    pub host_addresses: bool,
    /// True if the guest may reach the metadata services of cloud providers (`--metadata`).
    pub metadata: bool,
    /// Egress rules of the user (`--allow`, `--deny`).
    pub egress: Egress,
    /// Ports published at the start, in the order of the host's listeners and UDP sockets.
    pub published: Vec<Published>,
    /// Ports at which the guest reaches ports of the host (`--guest-forward`), which do not overlap.
    pub forwards: Vec<GuestForward>,
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
    /// The upstream proxy (`--proxy`).
    pub proxy: Option<Arc<Proxy>>,
}

/// A protocol or service of the guest's link that can be disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkService {
    /// DHCP for IPv4.
    Dhcp,
    /// DHCP for IPv6.
    Dhcpv6,
    /// Neighbour advertisements (RFC 4861).
    Ndp,
    /// Router advertisements (RFC 4861).
    RouterAdvertisement,
    /// TCP.
    Tcp,
    /// UDP, with the DNS forwarder's part.
    Udp,
    /// ICMP and ICMPv6 echo.
    Icmp,
    /// The DNS forwarder and the search domains in DHCP, DHCPv6 and router advertisements.
    DnsOption,
}

/// A set of services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceSet(u8);

impl ServiceSet {
    /// Returns true if `service` is in the set.
    #[must_use]
    pub const fn contains(self, service: LinkService) -> bool {
        self.0 & (1 << service as u8) != 0
    }
}

impl FromIterator<LinkService> for ServiceSet {
    fn from_iter<I: IntoIterator<Item = LinkService>>(services: I) -> Self {
        Self(
            services
                .into_iter()
                .fold(0, |set, service| set | 1 << service as u8),
        )
    }
}

impl Config {
    /// Returns true if DHCP and router advertisements contain the address of the DNS forwarder.
    pub(crate) fn announces_dns(&self) -> bool {
        (!self.resolvers.is_empty() || self.has_proxy_names())
            && !self.disabled.contains(LinkService::DnsOption)
    }

    /// Returns the search domains that DHCP and router advertisements contain.
    pub(crate) fn announced_search(&self) -> &[String] {
        match self.disabled.contains(LinkService::DnsOption) {
            true => &[],
            false => &self.search,
        }
    }

    /// Returns a configuration with the default Ethernet addresses, an MTU of 1,500 bytes, 1,000 flows and a fourth of
    /// Linux's default range of ephemeral UDP ports, without resolvers, published ports, rules, and permission to reach the
    /// host.
    #[must_use]
    pub fn new(plan: AddressPlan) -> Self {
        Self {
            plan,
            our_mac: OUR_MAC,
            guest_mac: GUEST_MAC,
            mtu: 1_500,
            hostname: None,
            fqdn: None,
            disabled: ServiceSet::default(),
            search: Vec::new(),
            resolvers: Vec::new(),
            host_loopback: Vec::new(),
            mapped_host: Vec::new(),
            host: [None; 2],
            host_addresses: false,
            metadata: false,
            egress: Egress::default(),
            published: Vec::new(),
            forwards: Vec::new(),
            connect_timeout: None,
            udp_filter: UdpFilter::Address,
            max_flows: 1_000,
            max_udp_ports: 7_058,
            max_flow_rate: None,
            bandwidth: None,
            proxy: None,
        }
    }
}

/// Transport protocols of published ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// A published TCP port.
    Tcp,
    /// A published UDP port.
    Udp,
}

record_enum! { Protocol { 0 = Tcp, 1 = Udp } }

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// A published port: a listening or bound socket on the host whose clients the engine forwards to a port of the guest.
/// No two published ports have the same protocol, host address and interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Transport protocol of the published port.
    pub protocol: Protocol,
    /// Host address and port to which the host socket is bound.
    pub host: SocketAddr,
    /// Index of the interface to which the host socket is bound; `None`: it receives from all interfaces.
    pub interface: Option<NonZeroU32>,
    /// Address behind the link to which clients are forwarded, of the same family as `host`; `None`: the guest's own.
    pub target: Option<IpAddr>,
    /// Port to which clients are forwarded.
    pub guest_port: u16,
    /// Path of the data of clients on this host. Clients of other hosts are always forwarded over the link.
    pub path: PublishedPath,
}

record! { Published { protocol, host, interface, target, guest_port, path } }

/// Path of the data of clients that connect to a published TCP port from a loopback address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PublishedPath {
    /// A socket in the guest's network namespace, connected to the guest's own address, if the guest is a namespace of this
    /// host and a program there listens; otherwise the link.
    #[default]
    Shortest,
    /// The link.
    Link,
    /// As [`Self::Shortest`], but to the guest's loopback address.
    GuestLoopback,
}

record_enum! { PublishedPath { 0 = Shortest, 1 = Link, 2 = GuestLoopback } }

/// Key of a published port. No two published ports have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublishedKey {
    /// Transport protocol of the published port.
    pub protocol: Protocol,
    /// Host address and port to which the host socket is bound.
    pub host: SocketAddr,
    /// Index of the interface to which the host socket is bound, if any.
    pub interface: Option<NonZeroU32>,
}

record! { PublishedKey { protocol, host, interface } }

impl Published {
    /// Returns a published port that is bound to no interface and leads to the guest's own address.
    #[must_use]
    pub const fn new(protocol: Protocol, host: SocketAddr, guest_port: u16) -> Self {
        Self {
            protocol,
            host,
            interface: None,
            target: None,
            guest_port,
            path: PublishedPath::Shortest,
        }
    }

    /// Returns the key of this port.
    #[must_use]
    pub const fn key(&self) -> PublishedKey {
        PublishedKey {
            protocol: self.protocol,
            host: self.host,
            interface: self.interface,
        }
    }

    /// Returns the address and port to which clients are forwarded; `None` if the guest has no address of the family.
    #[must_use]
    pub fn guest(&self, plan: &AddressPlan) -> Option<SocketAddr> {
        let own = plan.guest(self.host.ip())?;
        Some(SocketAddr::new(self.target.unwrap_or(own), self.guest_port))
    }

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
        let interface = self.interface.map_or(0, NonZeroU32::get);
        address
            .wrapping_add(self.host.port().into())
            .wrapping_add(interface << 16)
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
