//! Changes the configuration of a running engine: published ports, resolvers, addresses of the host, egress rules.

use core::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use pontoon_wire::Mac;

use super::Engine;
use crate::config::{Protocol, Published};
use crate::egress::{EgressRule, RefusedFlows};
use crate::policy::GuestForwards;
use crate::{Failure, Host, Instant, Kind, Transmit};

impl<H: Host> Engine<H> {
    /// Publishes the ports of the configuration, and returns those that cannot be published; called before the first
    /// packet. With several workers, only the worker [`FIRST`](crate::siblings::FIRST) has published UDP ports.
    pub fn open_published<T: Transmit>(
        &mut self,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) -> Vec<(Published, Failure)> {
        let ports = self.net.config.published.clone();
        let open = |(place, published)| {
            let opened = self.publish(place, published, link, host, now);
            opened.err().map(|failure| (published, failure))
        };
        (0..).zip(ports).filter_map(open).collect()
    }

    /// Publishes the port `published` with the host socket at index `place`: a new socket, or one that was published to
    /// another port of the guest.
    ///
    /// # Errors
    /// The host has no socket at this index.
    pub fn publish<T: Transmit>(
        &mut self,
        place: u32,
        published: Published,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) -> Result<(), Failure> {
        if published.protocol == Protocol::Udp {
            // Ends the previous publication, which is found by its guest port.
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

    /// Ends the publication of the host socket at index `place`, which is about to be closed. Clients in the listener's
    /// queue are accepted first; open connections continue.
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

    /// Closes the guest's UDP endpoint that uses the port of `published`, because another worker owns or owned it.
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

    /// Replaces the list of host resolvers to which the DNS forwarder sends queries.
    pub fn set_resolvers(&mut self, resolvers: Vec<SocketAddr>) {
        self.protocols.dns.set_resolvers(&resolvers);
        self.net.config.resolvers = resolvers;
    }

    /// Sets the host's own addresses and address ranges. Flows to them are closed unless `--host-addresses` permits
    /// them.
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

    /// Ends the flows whose destinations the policy refuses since the host's addresses or the guest forwards changed.
    fn disown<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        self.protocols.udp.disown(&self.net.policy);
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.tcp.disown(ctx);
        ctx.link.flush();
    }

    /// Has `change` add and remove guest forwards, at whose ports the guest reaches ports of the host. Then closes the
    /// connections that the guest has made by forwards that `change` has removed.
    pub fn change_forwards<T: Transmit>(
        &mut self,
        change: impl FnOnce(&mut GuestForwards),
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        let before = self.net.policy.forwards.clone();
        change(&mut self.net.policy.forwards);
        if !self.net.policy.forwards.lacks_any_of(&before) {
            return;
        }
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.tcp.close_forwarded(&before, ctx);
        self.disown(link, host, now);
    }

    /// Sets whether the host has an IPv6 default route, so that router advertisements announce one to the guest.
    pub fn set_ipv6_route(&mut self, exists: bool) {
        if let Some(v6) = &mut self.net.config.plan.v6 {
            v6.default_route = exists;
        }
    }

    /// Replaces the egress rules. Flows to destinations that the new rules refuse are closed.
    pub fn set_rules<T: Transmit>(&mut self, rules: &[EgressRule], link: &mut T, host: &mut H, now: Instant) {
        self.replace_rules(rules, RefusedFlows::Reset, link, host, now);
    }

    /// Replaces the egress rules. Flows to destinations that the new rules refuse are closed or kept; in either case those that
    /// were kept before and that the new rules permit are subject to these again.
    pub fn replace_rules<T: Transmit>(
        &mut self,
        rules: &[EgressRule],
        refused: RefusedFlows,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        self.net.policy.egress.set(rules);
        let (protocols, ctx) = &mut self.split(link, host, now);
        match refused {
            RefusedFlows::Reset => {
                protocols.tcp.enforce(ctx);
                protocols.udp.enforce(ctx);
            }
            RefusedFlows::Keep => {
                protocols.tcp.keep_refused(ctx);
                protocols.udp.keep_refused(ctx);
            }
        }
        protocols.icmp.enforce(refused, ctx);
        ctx.link.flush();
    }

    /// Sets the guest's Ethernet address, which another worker has learned from a frame.
    pub fn set_guest_mac(&mut self, mac: Mac) {
        self.net.guest_mac = mac;
    }
}
