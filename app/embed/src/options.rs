//! Options of a network that a VMM starts.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use pontoon_engine::config::{Addresses, GUEST_MAC, OUR_MAC, UdpFilter, V4, V6};
use pontoon_engine::{Config, Egress};
use pontoon_worker::{Outbound, Pacing};

/// The options of a network.
#[derive(Debug)]
pub struct NetworkOptions {
    /// The engine's configuration: addresses, resolvers, destinations that the guest may reach, limits.
    pub config: Config,
    /// Addresses that the host owns.
    pub owned: Vec<IpAddr>,
    /// One socket for each entry of `config.published`, in its order: listening (TCP) or bound (UDP). They are
    /// set to non-blocking at the start, also for other processes that share them.
    pub published: Vec<OwnedFd>,
    /// Raw ICMP and ICMPv6 sockets. Without them, echo requests use ping sockets, if the host permits
    /// them to this process (`ping_group_range`).
    pub raw_icmp: [Option<OwnedFd>; 2],
    /// The way in which the engine waits for events.
    pub pacing: Pacing,
    /// The source addresses or interface of the host's sockets.
    pub outbound: Option<Outbound>,
}

impl Default for NetworkOptions {
    /// 10.0.2.0/24 and fd70:6f6e:746f::/64, an MTU of 1,500, no resolvers, nothing published, 1,000 flows, hybrid pacing.
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
