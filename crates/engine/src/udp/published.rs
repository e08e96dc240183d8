//! Published ports: sockets that stand for a guest's endpoint from the start, and clients that come in by them.

use core::net::{IpAddr, SocketAddr};

use rand_chacha::rand_core::RngCore;

use super::peers::{Owner, Peer, Side};
use super::{Endpoint, Udp};
use crate::config::Protocol;
use crate::ctx::{Ctx, Net};
use crate::host::Received;
use crate::peers::FlowKey;
use crate::{Failure, Host, Instant, Kind, Transmit};

impl<S> Udp<S> {
    /// Takes over the sockets of the published UDP ports. Their endpoints never expire and are never given up.
    ///
    /// # Errors
    /// Of the first socket that the host did not hand over.
    pub fn open_published<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Failure> {
        for (place, published) in (0..).zip(ctx.net.config.published.clone()) {
            let guest = ctx.net.config.addresses.guest(published.host.ip());
            let (Protocol::Udp, Some(guest)) = (published.protocol, guest) else {
                continue;
            };
            let guest = SocketAddr::new(guest, published.guest_port);
            let nth = (0..u8::MAX).find(|&nth| self.endpoints.find(&(guest, nth)).is_none());
            self.open_door(place, (guest, nth.ok_or(Failure::Invalid)?), ctx)?;
        }
        Ok(())
    }

    /// Takes over the socket of the published port at `place`, as the endpoint's by that key.
    pub(super) fn open_door<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        place: u32,
        key: (SocketAddr, u8),
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Failure> {
        if let (guest, 0) = key {
            let claimed = ctx.net.claim(&FlowKey::Udp(guest));
            debug_assert!(claimed.is_ok(), "it is claimed before any packet is looked at");
        }
        let (index, generation) = self.endpoints.vacant();
        let flow = ctx.net.flow(Kind::Udp, index, generation);
        let socket = ctx.host.udp_published(place, flow)?;
        let endpoint = Endpoint {
            published: Some(place),
            ..Endpoint::new(socket, true, ctx.now)
        };
        ctx.net.opened();
        let index = self.endpoints.insert(key, endpoint);
        self.endpoints.pin(index);
        Ok(())
    }

    /// The socket by which the endpoint at `home` sends to somebody new: the first one that can reach there, for a
    /// socket that is bound to a loopback address cannot leave the host, nor any other reach loopback.
    pub(super) fn way_out(&self, home: u32, remote: SocketAddr, net: &Net) -> u32 {
        let reaches = |index: u32| {
            let place = self.endpoints.at(index).published?;
            let bound = net.config.published.get(place as usize)?.host.ip();
            Some(bound.is_unspecified() || bound.is_loopback() == remote.ip().is_loopback())
        };
        if reaches(home).unwrap_or(true) {
            return home;
        }
        let guest = self.endpoints.key(home).0;
        (1..u8::MAX)
            .map_while(|nth| self.endpoints.find(&(guest, nth)))
            .find(|&index| reaches(index) == Some(true))
            .unwrap_or(home)
    }

    /// Remembers a client by which socket and address it came in, and returns the address that the guest knows it by:
    /// its own, or the gateway with a fresh port.
    pub(super) fn meet(
        &mut self,
        home: u32,
        via: u32,
        received: &Received,
        net: &mut Net,
        now: Instant,
    ) -> Option<SocketAddr> {
        let remote = received.from;
        let owner = self.owner(home);
        let written = match net.policy.shown(remote.ip()) {
            shown if shown == remote.ip() => remote,
            gateway => self.fresh_port(home, owner, gateway, net)?,
        };
        let client = Peer {
            remote,
            written,
            via,
            from: received.to,
            used: now,
            came_in: true,
        };
        self.endpoints
            .at_mut(home)
            .peers
            .learn(&mut self.pool, owner, client, now);
        Some(written)
    }

    /// A port of the gateway that stands for nobody else towards this endpoint.
    fn fresh_port(&self, home: u32, owner: Owner, gateway: IpAddr, net: &mut Net) -> Option<SocketAddr> {
        let peers = &self.endpoints.at(home).peers;
        let first = net.random.next_u32();
        // A random start, then one after the other: with as many clients as ports a chance hit would be rare.
        (0..=EPHEMERAL_MASK)
            .map(|step| {
                let low = (first.wrapping_add(step) & EPHEMERAL_MASK) as u16;
                SocketAddr::new(gateway, EPHEMERAL | low)
            })
            .find(|&port| peers.find(&self.pool, owner, Side::Written, port).is_none())
    }
}

/// RFC 6335 section 6: the dynamic ports, 49152 to 65535.
const EPHEMERAL: u16 = 0xc000;
const EPHEMERAL_MASK: u32 = 0x3fff;
