//! Options of a network that a VMM starts.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use pontoon_engine::config::{Addresses, GUEST_MAC, OUR_MAC, UdpFilter, V4, V6};
use pontoon_engine::{Config, Egress};
use pontoon_worker::{Outbound, Pacing};

/// Options of a network that [`Network::start`](crate::Network::start) starts.
#[derive(Debug)]
pub struct NetworkOptions {
    /// Configuration of the engine: addresses, resolvers, destinations that the guest may reach, limits.
    pub config: Config,
    /// Addresses of the host, which the guest may not reach.
    pub owned: Vec<IpAddr>,
    /// One host socket for each entry of `config.published`, in its order: listening (TCP) or bound (UDP). They are set to
    /// non-blocking at the start, also for other processes that share them.
    pub published: Vec<OwnedFd>,
    /// Raw ICMP and ICMPv6 sockets. Without them, ICMP echo requests are sent through ping sockets, if the host permits
    /// these to this process (`ping_group_range`).
    pub raw_icmp: [Option<OwnedFd>; 2],
    /// Way in which the engine waits for input: spinning or sleeping.
    pub pacing: Pacing,
    /// Source address or interface of host sockets; `None` leaves the choice to the kernel.
    pub outbound: Option<Outbound>,
}

impl Default for NetworkOptions {
    /// Returns options with 10.0.2.0/24 and fd70:6f6e:746f::/64, an MTU of 1,500 bytes, no resolvers, no published ports,
    /// at most 1,000 flows, and hybrid pacing.
    fn default() -> Self {
        let config = Config {
            addresses: Addresses {
                v4: V4::of(V4::USUAL),
                v6: Some(V6::of(V6::USUAL, false)),
            },
            our_mac: OUR_MAC,
            guest_mac: GUEST_MAC,
            mtu: 1500,
            hostname: None,
            search: Vec::new(),
            resolvers: Vec::new(),
            host_loopback: Vec::new(),
            host_addresses: false,
            metadata: false,
            egress: Egress::default(),
            published: Vec::new(),
            connect_timeout: None,
            udp_filter: UdpFilter::Address,
            max_flows: 1000,
            max_udp_ports: 7_058,
            max_flow_rate: None,
            bandwidth: None,
        };
        Self {
            config,
            owned: Vec::new(),
            published: Vec::new(),
            raw_icmp: [None, None],
            pacing: Pacing::Hybrid,
            outbound: None,
        }
    }
}
