//! Published UDP ports: host sockets that are the mapping of a guest's endpoint, and their clients.

use core::net::{IpAddr, SocketAddr};

use rand_chacha::rand_core::RngCore;

use super::peer_ports::{PeerPorts, RulesSeen};
use super::peers::{Peer, PeerGroup};
use super::{BESIDE, Udp, UdpEndpoint};
use crate::config::Published;
use crate::ctx::{Ctx, Net};
use crate::egress::EgressProtocol;
use crate::flow_events::{CloseReason, Grounds};
use crate::host::Received;
use crate::siblings::FlowKey;
use crate::{Failure, Host, Instant, Kind, Transmit};

impl<S> Udp<S> {
    /// Opens the endpoint of a published port, which never expires and is never evicted. An endpoint that the guest has
    /// opened from the same port is closed.
    ///
    /// # Errors
    /// The host did not return the socket, or the number of sockets published to the guest's port has reached its
    /// limit.
    pub fn publish<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        place: u32,
        published: Published,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Failure> {
        self.yield_port(published, ctx);
        let Some(guest) = published.guest(&ctx.net.config.plan) else {
            return Ok(());
        };
        let nth = (0..BESIDE).find(|&nth| self.endpoints.find(&(guest, nth)).is_none());
        self.open_published_socket(place, (guest, nth.ok_or(Failure::Invalid)?), ctx)
    }

    /// Closes the endpoint that the guest has opened from the port of `published`; the endpoint of a published port is
    /// not closed.
    pub fn yield_port<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        published: Published,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let guest = published.guest(&ctx.net.config.plan);
        if let Some(index) = guest.and_then(|guest| self.endpoints.find(&(guest, 0)))
            && self.endpoints.at(index).published.is_none()
        {
            self.remove(index, CloseReason::PortChanged, ctx);
        }
    }

    /// Returns the socket of a published port to the host. Later sockets that are published to the same port of the
    /// guest move up by one number; their clients, which refer to the former slots, are removed.
    pub fn unpublish<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        place: u32,
        published: Published,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some(guest) = published.guest(&ctx.net.config.plan) else {
            return;
        };
        let all = (0..BESIDE).map_while(|nth| Some((nth, self.endpoints.find(&(guest, nth))?)));
        let is_it = |&(_, index): &(u8, u32)| self.endpoints.at(index).published == Some(place);
        let behind: Vec<(u8, u32)> = all.skip_while(|socket| !is_it(socket)).collect();
        let Some(&(first, _)) = behind.first() else {
            return;
        };
        let home = self.endpoints.find(&(guest, 0)).filter(|_| first > 0);
        let mut places = Vec::new();
        for (_, index) in behind {
            // If the first socket is removed, the endpoint gets a new generation, so that none of its peers is found
            // any more.
            if let Some(home) = home {
                self.pool.forget_via(index);
                let peers = &mut self.endpoints.at_mut(home).peers;
                peers.forget_first(|peer| peer.via == index);
            }
            places.extend(self.endpoints.at(index).published);
            self.remove(index, CloseReason::PortChanged, ctx);
        }
        for (nth, place) in (first..).zip(places.into_iter().skip(1)) {
            if self.open_published_socket(place, (guest, nth), ctx).is_err() {
                ctx.net.counters.host_exhausted += 1;
            }
        }
        // If the last published socket was removed, the extra endpoint is closed, and the guest's port has one socket
        // like any other port.
        if self.endpoints.find(&(guest, 0)).is_none()
            && let Some(beside) = self.endpoints.find(&(guest, BESIDE))
        {
            self.remove(beside, CloseReason::PortChanged, ctx);
        }
    }

    /// Opens the endpoint `key` with the host socket of the published port at index `place` of the configuration.
    pub(super) fn open_published_socket<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        place: u32,
        key: (SocketAddr, u8),
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Failure> {
        let (index, generation) = self.endpoints.vacant();
        let flow = ctx.net.flow(Kind::Udp, index, generation);
        let socket = ctx.host.udp_published(place, flow)?;
        // Only with a socket is the key claimed; without one it would never be released, and the guest could not send
        // from its port.
        if let (guest, 0) = key {
            ctx.net.seize(&FlowKey::Udp(guest));
        }
        let endpoint = UdpEndpoint {
            published: Some(place),
            ..UdpEndpoint::new(socket, true, ctx.now)
        };
        ctx.net.opened();
        let index = self.endpoints.insert(key, endpoint);
        self.endpoints.pin(index);
        self.pool.add_port();
        let came_in = (true, Grounds::NONE);
        self.report_peer((index, true), None, None, came_in, (ctx.net, ctx.now));
        Ok(())
    }

    /// Returns the slot of the socket by which the endpoint at `home` sends to a new peer: the first socket that can
    /// reach it. A socket bound to a loopback address reaches only the host, and other sockets do not reach loopback.
    pub(super) fn way_out(&self, home: u32, remote: SocketAddr, net: &Net) -> Option<u32> {
        let reaches = |index: u32| {
            let place = self.endpoints.at(index).published?;
            let bound = net.config.published.get(place as usize)?.host.ip();
            Some(bound.is_unspecified() || bound.is_loopback() == remote.ip().is_loopback())
        };
        if reaches(home).unwrap_or(true) {
            return Some(home);
        }
        let guest = self.endpoints.key(home).0;
        (1..BESIDE)
            .map_while(|nth| self.endpoints.find(&(guest, nth)))
            .find(|&index| reaches(index) == Some(true))
    }

    /// Stores a client that has sent a datagram, with the socket and host address to which it has sent. `grounds` are those on
    /// which it is permitted. Returns its address as the guest sees it: its own, or the gateway's with a new port.
    pub(super) fn add_client(
        &mut self,
        home: u32,
        via: u32,
        received: &Received,
        grounds: Grounds,
        (net, now): (&mut Net, Instant),
    ) -> Option<SocketAddr> {
        let remote = received.from;
        let owner = self.owner(home);
        let group = PeerGroup::of_strangers(self.endpoints.at(home).published);
        let guest = self.endpoints.key(home).0.ip();
        let written = match net.policy.visible_client_of(guest, remote.ip()) {
            shown if shown == remote.ip() => remote,
            gateway => self.fresh_port(home, gateway, net, now)?,
        };
        let client = Peer {
            remote,
            written,
            via,
            from: received.to,
            used: now,
            came_in: self.endpoints.at(home).published.is_some(),
            has_port: false,
            ports: PeerPorts::default(),
            redirected: false,
            rules: RulesSeen::new(net.policy.egress.generation()),
        };
        self.endpoints
            .at_mut(home)
            .peers
            .learn(&mut self.pool, owner, group, client, now);
        let came_in = (true, grounds);
        self.report_peer((home, false), Some(written), Some(remote), came_in, (net, now));
        Some(written)
    }

    /// Returns the gateway's address with a port that represents no other client of the guest's port, except an expired
    /// one; `None` if none was found.
    fn fresh_port(&self, home: u32, gateway: IpAddr, net: &mut Net, now: Instant) -> Option<SocketAddr> {
        // An extra endpoint has its own peers, with the same guest-visible addresses.
        let (guest, _) = *self.endpoints.key(home);
        let home = self.endpoints.find(&(guest, 0)).unwrap_or(home);
        let first = net.random.next_u32();
        // The step is odd, so that all ports are reached, and random, so that ports in use are not adjacent.
        let stride = net.random.next_u32() | 1;
        (0..PORT_TRIES)
            .map(|nth| {
                let low = (first.wrapping_add(stride.wrapping_mul(nth)) & EPHEMERAL_MASK) as u16;
                SocketAddr::new(gateway, EPHEMERAL | low)
            })
            .find(|&port| {
                let forwarded = net.policy.forward(EgressProtocol::Udp, port);
                forwarded.is_none() && self.fresh_peer(home, port, now).is_none()
            })
    }
}

/// First of the dynamic ports, 49152 to 65535 (RFC 6335 section 6).
const EPHEMERAL: u16 = 0xc000;
const EPHEMERAL_MASK: u32 = 0x3fff;

/// Maximum number of ports that are tried for a client with the gateway's address: if nine of ten ports are in use, one
/// client in a thousand is refused, and a flood of clients takes little time from others.
const PORT_TRIES: u32 = 64;
