//! Changes of the configuration: published ports, resolvers, addresses, rules.

use core::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use pontoon_wire::Mac;

use super::Engine;
use crate::config::{Protocol, Published};
use crate::egress::EgressRule;
use crate::{Failure, Host, Instant, Kind, Transmit};

impl<H: Host> Engine<H> {
    /// Publishes the ports of the configuration, before the first packet. With several workers, only
    /// [`FIRST`](crate::siblings::FIRST) has UDP ports.
    ///
    /// # Errors
    /// A socket of the configuration does not exist.
    pub fn open_published<T: Transmit>(
        &mut self,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) -> Result<(), Failure> {
        for (place, published) in (0..).zip(self.net.config.published.clone()) {
            self.publish(place, published, link, host, now)?;
        }
        Ok(())
    }

    /// Publishes the port `published` by the host's socket at `place`: a new one, or one that led to another port of the guest.
    ///
    /// # Errors
    /// There is no such socket.
    pub fn publish<T: Transmit>(
        &mut self,
        place: u32,
        published: Published,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) -> Result<(), Failure> {
        if published.protocol == Protocol::Udp {
            // By the guest's port to which it led.
            self.unpublish(place, link, host, now);
        }
        let all = &mut self.net.config.published;
        let index = place as usize;
        if all.len() <= index {
            all.resize(index + 1, published);
        }
        all[index] = published;
        match published.protocol {
            Protocol::Tcp => Ok(()),
            Protocol::Udp => {
                let (protocols, ctx) = &mut self.split(link, host, now);
                protocols.udp.publish(place, published, ctx)
            }
        }
    }

    /// Unpublishes the host's socket at `place`, which is about to be closed. Waiting clients are accepted; connections stay.
    pub fn unpublish<T: Transmit>(&mut self, place: u32, link: &mut T, host: &mut H, now: Instant) {
        let Some(published) = self.net.config.published.get(place as usize).copied() else {
            return;
        };
        let (protocols, ctx) = &mut self.split(link, host, now);
        match published.protocol {
            Protocol::Tcp => {
                let listener = ctx.net.flow(Kind::Listener, place, 0);
                protocols.tcp.drain_listener(listener, ctx);
                protocols.evict_reclaimed(ctx);
            }
            Protocol::Udp => protocols.udp.unpublish(place, published, ctx),
        }
        ctx.link.flush();
    }

    /// Closes the guest's endpoint behind the UDP port `published`, which another worker has, or had.
    pub fn yield_port<T: Transmit>(
        &mut self,
        published: Published,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.udp.yield_port(published, ctx);
    }

    /// Replaces the host's resolvers.
    pub fn set_resolvers(&mut self, resolvers: Vec<SocketAddr>) {
        self.protocols.dns.set_resolvers(&resolvers);
        self.net.config.resolvers = resolvers;
    }

    /// Sets the host's own addresses and ranges of addresses. Flows to them end, unless they are permitted.
    pub fn set_owned_addresses<T: Transmit>(
        &mut self,
        owned: &[IpNet],
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        self.net.policy.owned = owned.iter().copied().collect();
        self.disown(link, host, now);
    }

    /// Sets the addresses from which the host sends to other hosts: IPv4, IPv6. Datagrams to a mapped address go to the new
    /// one, and connections to it end if the host has none any more.
    pub fn set_host_addresses<T: Transmit>(
        &mut self,
        addresses: [Option<IpAddr>; 2],
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        self.net.policy.host = addresses;
        self.disown(link, host, now);
    }

    /// Ends the flows whose destinations policy refuses since the host's addresses changed.
    fn disown<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        self.protocols.udp.disown(&self.net.policy);
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.tcp.disown(ctx);
        ctx.link.flush();
    }

    /// Sets whether the host has an IPv6 default route, which router advertisements contain.
    pub fn set_ipv6_route(&mut self, exists: bool) {
        if let Some(v6) = &mut self.net.config.plan.v6 {
            v6.default_route = exists;
        }
    }

    /// Replaces the user's rules. Flows that they refuse end.
    pub fn set_rules<T: Transmit>(&mut self, rules: &[EgressRule], link: &mut T, host: &mut H, now: Instant) {
        self.net.policy.egress.set(rules);
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.tcp.enforce(ctx);
        protocols.udp.enforce(ctx);
        ctx.link.flush();
    }

    /// Sets the guest's Ethernet address, which another worker has learned.
    pub fn set_guest_mac(&mut self, mac: Mac) {
        self.net.guest_mac = mac;
    }
}
