//! The engine's configuration: addresses, MTU, published ports, rules and limits.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use pontoon_wire::Mac;

use crate::address_plan::AddressPlan;
use crate::bandwidth::Bandwidth;
use crate::egress::Egress;

/// The engine's default Ethernet address: locally administered, "Pont" in ASCII.
pub const OUR_MAC: Mac = Mac([0x02, 0x50, 0x6f, 0x6e, 0x74, 0x02]);

/// The guest's default Ethernet address.
pub const GUEST_MAC: Mac = Mac([0x02, 0x50, 0x6f, 0x6e, 0x74, 0x0f]);

/// Everything that is decided before the first packet.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses and routes of the guest's link.
    pub plan: AddressPlan,
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
    /// Addresses that reach the host at the address from which it sends to other hosts (`--map-host`).
    pub mapped_host: Vec<IpAddr>,
    /// The addresses from which the host sends to other hosts: IPv4, IPv6.
    pub host: [Option<IpAddr>; 2],
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

impl Config {
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
            search: Vec::new(),
            resolvers: Vec::new(),
            host_loopback: Vec::new(),
            mapped_host: Vec::new(),
            host: [None; 2],
            host_addresses: false,
            metadata: false,
            egress: Egress::default(),
            published: Vec::new(),
            connect_timeout: None,
            udp_filter: UdpFilter::Address,
            max_flows: 1_000,
            max_udp_ports: 7_058,
            max_flow_rate: None,
            bandwidth: None,
        }
    }
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
