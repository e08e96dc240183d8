//! Options of a network that a VMM starts.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use pontoon_engine::Config;
use pontoon_engine::address_plan::AddressPlan;
use pontoon_engine::decider::Decider;
use pontoon_worker::events::recorder::Record;
use pontoon_worker::{Outbound, Pacing};

use crate::{FlowDecider, FlowEventCallback};

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
    pub outbound: Outbound,
    /// Decider about new flows; `None` allows all flows that the configuration allows.
    pub decider: Option<FlowDecider>,
    /// Function that receives the records of flows.
    pub events: Option<FlowEventCallback>,
}

impl NetworkOptions {
    /// Sets the decider about new flows; see [`FlowDecider::new`].
    #[must_use]
    pub fn with_decider<D: Decider + Clone + 'static>(mut self, decider: D, deadline: Duration) -> Self {
        self.decider = Some(FlowDecider::new(decider, deadline));
        self
    }

    /// Sets the function that receives the records of flows; see [`FlowEventCallback::new`].
    #[must_use]
    pub fn with_events(mut self, function: impl FnMut(&Record<'_>) + Send + 'static) -> Self {
        self.events = Some(FlowEventCallback::new(function));
        self
    }
}

impl Default for NetworkOptions {
    /// Returns options with 10.0.2.0/24 and fd70:6f6e:746f::/64, an MTU of 1,500 bytes, no resolvers, no published ports,
    /// at most 1,000 flows, hybrid pacing, no decider, and no receiver of events.
    fn default() -> Self {
        Self {
            config: Config::new(AddressPlan::usual(false)),
            owned: Vec::new(),
            published: Vec::new(),
            raw_icmp: [None, None],
            pacing: Pacing::Hybrid,
            outbound: Outbound::default(),
            decider: None,
            events: None,
        }
    }
}
