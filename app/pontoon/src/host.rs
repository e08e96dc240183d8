//! State of the host's network that the engine depends on.

use std::net::IpAddr;

use ipnet::IpNet;
use pontoon_host_network::address_watch::owned;
use pontoon_host_network::network::HostNetwork;
use pontoon_host_network::resolv::Resolv;
use pontoon_host_network::source_addresses;
use pontoon_process::netlink::Netlink;
use pontoon_worker::Update;

use crate::error::{Context as _, Error};

/// State of the host's network at the last read.
#[derive(Debug)]
pub(crate) struct HostState {
    netlink: Netlink,
    /// Addresses of the host, and prefixes that a route of type `local` delivers to it.
    pub(crate) owned: Vec<IpNet>,
    /// The addresses from which the host sends to other hosts: IPv4, IPv6.
    pub(crate) sources: [Option<IpAddr>; 2],
    /// True if the DNS forwarder sends queries to the host's resolvers.
    pub(crate) asks_host: bool,
}

impl HostState {
    /// Reads the state for the first time.
    pub(crate) fn open(asks_host: bool) -> Result<(Self, HostNetwork), Error> {
        let mut netlink = Netlink::open().context("cannot open a netlink socket")?;
        let network = HostNetwork::read(&mut netlink).context("cannot read the host's addresses")?;
        let state = Self {
            netlink,
            owned: owned(&network.addresses, &network.local),
            sources: source_addresses(),
            asks_host,
        };
        Ok((state, network))
    }

    pub(crate) fn netlink(&mut self) -> &mut Netlink {
        &mut self.netlink
    }

    /// Reads the state again, and returns the updates for the engine.
    pub(crate) fn read(&mut self) -> Result<Vec<Update>, Error> {
        let network = HostNetwork::read(&mut self.netlink).context("cannot read the host's addresses")?;
        self.owned = owned(&network.addresses, &network.local);
        self.sources = source_addresses();
        let mut updates = Update::owned(self.owned.clone());
        updates.push(Update::HostAddresses(self.sources));
        updates.push(Update::Ipv6Route(network.ipv6_default));
        if self.asks_host {
            updates.push(Update::Resolvers(Resolv::host().servers));
        }
        Ok(updates)
    }
}
