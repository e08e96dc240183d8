//! Options of a network that a VMM starts.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use pontoon_engine::Config;
use pontoon_engine::address_plan::AddressPlan;
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
    pub outbound: Outbound,
}

impl Default for NetworkOptions {
    /// 10.0.2.0/24 and fd70:6f6e:746f::/64, an MTU of 1,500, no resolvers, nothing published, 1,000 flows, hybrid pacing.
    fn default() -> Self {
        Self {
            config: Config::new(AddressPlan::usual(false)),
            owned: Vec::new(),
            published: Vec::new(),
            raw_icmp: [None, None],
            pacing: Pacing::Hybrid,
            outbound: Outbound::default(),
        }
    }
}
