//! The UDP endpoints of a state, with their sockets and peers.

use core::net::SocketAddr;

use super::peers::{Peer, PeerOwner};
use super::{BESIDE, FAMILIES, Udp, UdpEndpoint, family};
use crate::config::Protocol;
use crate::ctx::{Ctx, Net};
use crate::flow_events::CloseReason;
use crate::siblings::FlowKey;
use crate::state::{Adoption, Reader, SocketDescription, SocketKind, Sockets, StateError, Writer, check};
use crate::table::Table;
use crate::timer::Timer;
use crate::{FlowId, Host, Kind, Transmit};

impl<S> Udp<S> {
    /// Appends the endpoints and their peers, and adds the host sockets to `sockets`.
    pub(crate) fn save<'a>(&'a self, net: &Net, to: &mut Writer<'_>, sockets: &mut Sockets<'a, S>) {
        let Self {
            endpoints,
            pool,
            scratch: _,
        } = self;
        let mut places = Vec::new();
        for (index, endpoint) in endpoints.iter() {
            let flow = net.flow(Kind::Udp, index, endpoints.generation(index));
            places.push(sockets.add(&endpoint.socket, endpoint.description(flow)));
        }
        let mut places = places.into_iter();
        endpoints.save(to, |to, _, _, endpoint| {
            to.put(&places.next().expect("a place for each endpoint"));
            endpoint.save_record(to);
        });
        pool.save(to);
    }

    /// Reads what [`Self::save`] has written into this table, which is empty.
    pub(crate) fn load(
        &mut self,
        net: &mut Net,
        from: &mut Reader<'_>,
        adoption: &mut Adoption<'_, S>,
    ) -> Result<(), StateError> {
        let limits = (net.most_flows(), FAMILIES.len());
        self.endpoints
            .load(from, limits, |from, index, generation, (guest, nth)| {
                let place: u32 = from.get()?;
                let endpoint = UdpEndpoint::load_record(from)?;
                endpoint.check((*guest, *nth), net)?;
                let description = endpoint.description(net.flow(Kind::Udp, index, generation));
                let socket = adoption.take_only(place, Some(&description))?;
                Ok(socket.map(|socket| endpoint.with_sockets(socket)))
            })?;
        let mut ports = 0;
        for index in self.endpoints.places() {
            let (guest, nth) = *self.endpoints.key(index);
            let is_published = self.endpoints.at(index).published.is_some();
            check(self.endpoints.is_pinned(index) == is_published)?;
            check(is_published || self.endpoints.group(index) == family(guest))?;
            net.opened();
            match is_published {
                true => ports += 1,
                false => {
                    net.port_taken(guest.ip());
                    net.became_evictable();
                }
            }
            match (nth, is_published) {
                (0, true) => net.seize(&FlowKey::Udp(guest)),
                (0, false) => net.claim(&FlowKey::Udp(guest)).map_err(|_| StateError::Owner)?,
                _ => {}
            }
        }
        let most_groups = net.config.published.len() + 2;
        let Self { endpoints, pool, .. } = self;
        pool.load(from, ports, most_groups, |owner, peer| {
            is_sound(endpoints, owner, peer)
        })?;
        let firsts = self.endpoints.places().into_iter().all(|index| {
            let first = self.endpoints.at(index).peers.first();
            first.is_none_or(|first| is_sound(&self.endpoints, &self.owner(index), first))
        });
        check(firsts)?;
        self.disown(&net.policy);
        if net.decisions.is_none() {
            self.forget(|peer| peer.redirected);
        }
        Ok(())
    }

    /// Closes the extra endpoints of guest's ports whose other sockets were refused.
    pub(crate) fn end_refused<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        for index in self.endpoints.places() {
            let (guest, nth) = *self.endpoints.key(index);
            if nth == BESIDE && self.endpoints.find(&(guest, 0)).is_none() {
                self.remove(index, CloseReason::PortChanged, ctx);
            }
        }
    }

    /// Returns the indices of published ports that have an endpoint.
    pub(crate) fn published(&self) -> impl Iterator<Item = u32> {
        self.endpoints
            .iter()
            .filter_map(|(_, endpoint)| endpoint.published)
    }

    /// Returns the timer of a flow.
    pub(crate) fn timer_of(&mut self, flow: FlowId) -> Option<&mut Timer> {
        let endpoint = self.endpoints.get_mut(flow.index, flow.generation)?;
        Some(&mut endpoint.timer)
    }
}

impl<S> UdpEndpoint<S> {
    fn description(&self, flow: FlowId) -> SocketDescription {
        if let Some(place) = self.published {
            return SocketDescription::new(flow, SocketKind::UdpPublished(place));
        }
        match (self.connected, self.peers.only()) {
            (true, Some(peer)) => {
                SocketDescription::new(flow, SocketKind::UdpConnected).connected_to([peer.remote])
            }
            (true, None) => SocketDescription::new(flow, SocketKind::UdpConnected),
            (false, _) => SocketDescription::new(flow, SocketKind::Udp),
        }
    }

    /// Checks an endpoint that was read: a published port's belongs to that port, and another one is that of a guest's port.
    fn check(&self, (guest, nth): (SocketAddr, u8), net: &Net) -> Result<(), StateError> {
        match self.published {
            None => check(nth == 0 || nth == BESIDE),
            Some(place) => {
                let published = net.config.published.get(place as usize);
                let published = published.filter(|port| port.protocol == Protocol::Udp);
                let own = published.and_then(|port| port.guest(&net.config.plan));
                check(nth < BESIDE && own == Some(guest))
            }
        }
    }
}

/// Returns true if a peer's socket belongs to its endpoint, and only a published port has a client.
fn is_sound<S>(endpoints: &Table<(SocketAddr, u8), UdpEndpoint<S>>, owner: &PeerOwner, peer: &Peer) -> bool {
    if !endpoints.is_current(owner.index, owner.generation) {
        // The peer is not found any more.
        return true;
    }
    let endpoint = endpoints.at(owner.index);
    let is_via_sound = peer.via == owner.index
        || endpoints.contains(peer.via) && endpoints.key(peer.via).0 == endpoints.key(owner.index).0;
    is_via_sound && peer.came_in <= endpoint.published.is_some()
}
