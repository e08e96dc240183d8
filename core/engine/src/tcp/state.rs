//! The TCP connections of a state: their sockets, their consistency, and the lists that contain them.

use core::net::SocketAddr;
use std::collections::VecDeque;

use super::connection::{Connection, FIRST_WINDOW, MIN_MSS, SCALE, TcpState, link_mss};
use super::negotiation::Negotiation;
use super::open::{is_reachable, is_to_forwarder, standing};
use super::seq::Seq;
use super::up::WIDEST_WINDOW;
use super::{MOST_WAITING, Tcp};
use crate::config::{Protocol, Published};
use crate::ctx::{Ctx, Net};
use crate::decider::DecisionToken;
use crate::egress::EgressProtocol;
use crate::flow_events::CloseReason;
use crate::policy::Standing;
use crate::slab::Slab;
use crate::state::{Adoption, Reader, SocketDescription, SocketKind, Sockets, StateError, Writer, check};
use crate::tcp::accept::AcceptedClient;
use crate::tcp::half_closed::HalfClosed;
use crate::timer::Timer;
use crate::{FlowId, Host, Kind, Transmit};

impl<S> Tcp<S> {
    /// Appends the connections, and adds their host sockets to `sockets`.
    pub(crate) fn save<'a>(&'a self, net: &Net, to: &mut Writer<'_>, sockets: &mut Sockets<'a, S>) {
        let Self {
            connections,
            joined,
            table,
            dns,
            dirty,
            waiting,
            next_waiting,
            half_closed,
            stalled,
            next_look,
            negotiations,
            undecided,
            undecided_in_excess,
        } = self;
        table.save(to);
        to.count(negotiations.len());
        for (index, negotiation) in negotiations {
            to.put(index);
            to.frame(|to| negotiation.save(to));
        }
        let mut places = Vec::new();
        for (index, generation, connection) in connections.iter() {
            let flow = net.flow(Kind::Tcp, index, generation);
            let description = self.description(connection, flow, net);
            let place = connection.socket.as_ref().map(|socket| {
                // A connection that the policy refuses since this turn is refused again when the state is read.
                let refused = SocketDescription::new(flow, SocketKind::TcpConnected);
                sockets.add(socket, description.unwrap_or(refused))
            });
            places.push(place);
        }
        let mut places = places.into_iter();
        connections.save(to, |to, _, _, connection| {
            to.put(&places.next().flatten());
            connection.save_record(to);
        });
        half_closed.save(to);
        to.put(dns);
        to.put(dirty);
        to.put(waiting);
        to.put(next_waiting);
        to.put(stalled);
        to.put(next_look);
        to.count(undecided.len());
        for (token, client) in undecided {
            to.put(&token.0);
            to.frame(|to| client.save(to, sockets, net));
        }
        to.put(&undecided_in_excess.map(|token| token.0));
        joined.save(net, to, sockets);
    }

    /// Reads what [`Self::save`] has written into this table, which is empty.
    pub(crate) fn load(
        &mut self,
        net: &mut Net,
        from: &mut Reader<'_>,
        adoption: &mut Adoption<'_, S>,
    ) -> Result<(), StateError> {
        self.table.load(from)?;
        for _ in 0..from.count(net.config.max_flows as usize + 1)? {
            let index = from.get()?;
            let Some(proxy) = net.policy.proxy.clone() else {
                // The proxy was removed from the configuration.
                from.frame(|_| Ok(None::<()>))?;
                continue;
            };
            let negotiation = from.frame(|from| Negotiation::load(from, proxy).map(Box::new).map(Some))?;
            if let Some(negotiation) = negotiation {
                check(self.negotiations.insert(index, negotiation).is_none())?;
            }
        }
        let most = net.most_flows();
        self.connections = Slab::load(from, most, |from, index, generation| {
            let flow = net.flow(Kind::Tcp, index, generation);
            self.load_connection(flow, from, adoption, net).map(Some)
        })?;
        self.link_table(net)?;
        let id = |index| self.id(index, net);
        self.half_closed = HalfClosed::load(from, &self.connections, id)?;
        self.load_lists(from, net)?;
        for _ in 0..from.count(crate::decider::MOST_PENDING)? {
            let token = DecisionToken(from.get()?);
            let client = from.frame(|from| AcceptedClient::load(from, adoption, net))?;
            if let Some(client) = client {
                net.opened();
                net.client_opened(client.published.share_key());
                check(self.undecided.insert(token, client).is_none())?;
            }
        }
        self.undecided_in_excess = from.get::<Option<u64>>()?.map(DecisionToken);
        self.joined.load(net, from, adoption)
    }

    /// Returns the tokens of clients whose decision is pending.
    pub(crate) fn undecided(&self) -> impl Iterator<Item = DecisionToken> {
        self.undecided.keys().copied()
    }

    fn load_connection(
        &self,
        flow: FlowId,
        from: &mut Reader<'_>,
        adoption: &mut Adoption<'_, S>,
        net: &Net,
    ) -> Result<Connection<S>, StateError> {
        let place: Option<u32> = from.get()?;
        let connection = Connection::load_record(from)?;
        connection.check(place.is_some())?;
        let Some(place) = place else {
            return Ok(connection.with_sockets(None));
        };
        let negotiates = self.negotiations.contains_key(&flow.index);
        check(!negotiates || connection.is_connecting())?;
        let description = self.description(&connection, flow, net);
        let socket = adoption.take_only(place, description.as_ref())?;
        Ok(connection.with_sockets(socket))
    }

    /// Describes the host socket of a connection; `None` if the policy refuses the connection.
    fn description<T>(
        &self,
        connection: &Connection<T>,
        flow: FlowId,
        net: &Net,
    ) -> Option<SocketDescription> {
        let key = &connection.key;
        let negotiation = self.negotiations.get(&flow.index);
        let is_connecting =
            connection.is_connecting() && negotiation.is_none_or(|negotiation| !negotiation.is_connected);
        let kind = match is_connecting {
            true => SocketKind::TcpConnecting,
            false => SocketKind::TcpConnected,
        };
        let description = SocketDescription::new(flow, kind);
        if let Some(share_key) = connection.listener {
            let is_port = |port: &&Published| port.protocol == Protocol::Tcp && port.share_key() == share_key;
            let published = net.config.published.iter().find(is_port)?;
            let accepted = SocketDescription::new(flow, SocketKind::TcpAccepted);
            return Some(accepted.bound_to(published.host));
        }
        if is_to_forwarder(key, net) {
            let is_open = connection.up.queries.is_some() && !net.policy.egress.names_domains();
            return is_open.then(|| description.connected_to(net.config.resolvers.iter().copied()));
        }
        if !is_reachable(connection, net) {
            return None;
        }
        if let Some(negotiation) = negotiation {
            return Some(description.connected_to(negotiation.proxy_addresses()));
        }
        if connection.redirected {
            if net.decisions.is_some() {
                return Some(SocketDescription::new(flow, SocketKind::Stream));
            }
            let proxy = net.policy.proxy.as_ref()?;
            return Some(description.connected_to(proxy.addresses.iter().copied()));
        }
        let remote: SocketAddr = net.policy.translate(EgressProtocol::Tcp, key.remote).ok()?;
        Some(description.connected_to([remote]))
    }

    /// Lists the restored connections in the tables of this worker, of all workers, and in the ledger.
    fn link_table(&mut self, net: &mut Net) -> Result<(), StateError> {
        let slots: Vec<u32> = self.connections.iter().map(|(index, ..)| index).collect();
        for index in slots {
            let connection = self.connections.at(index);
            let (key, listener) = (connection.key, connection.listener);
            check(self.find(&key).is_none())?;
            net.claim(&key.into()).map_err(|_| StateError::Owner)?;
            net.stalled_bytes += u64::from(connection.held.counted);
            net.proving += u32::from(connection.proof.as_ref().is_some_and(|proof| proof.is_counted()));
            let connections = &self.connections;
            self.table.insert(&key, index, |other| connections.at(other).key);
            net.opened();
            if let Some(listener) = listener {
                net.client_opened(listener);
            }
            if let Some(ledger) = &net.ledger {
                ledger.enter(index, key.into());
            }
        }
        // The handshakes of connections that are not in the state.
        let connections = &self.connections;
        self.negotiations.retain(|index, _| connections.contains(*index));
        Ok(())
    }

    fn load_lists(&mut self, from: &mut Reader<'_>, net: &Net) -> Result<(), StateError> {
        let most = 2 * self.connections.slots() as usize + 65;
        let is_here = |flow: &FlowId| flow.kind == Kind::Tcp && flow.worker == net.worker;
        let list = |from: &mut Reader<'_>, most| {
            let list: Vec<FlowId> = from.list(most)?;
            check(list.iter().all(is_here))?;
            Ok(list)
        };
        self.dns = list(from, most)?;
        self.dirty = from.list(most)?;
        let connections = &self.connections;
        check(self.dirty.iter().all(|index| connections.contains(*index)))?;
        self.waiting = VecDeque::from(list(from, most.max(2 * MOST_WAITING))?);
        self.next_waiting = from.get()?;
        self.stalled = VecDeque::from(list(from, most)?);
        self.next_look = from.get()?;
        Ok(())
    }

    /// Ends the restored connections whose sockets were refused, and those that the policy refuses.
    pub(crate) fn end_refused<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        let slots = self.indices(|_| true);
        for index in slots {
            let connection = self.connections.at_mut(index);
            let most = u32::from(link_mss(connection.key.guest, ctx.net.mtu));
            connection.down.mss = connection.down.mss.min(most.max(MIN_MSS));
        }
        self.end_lost_joined(ctx);
        let lost = self.indices(|connection| connection.socket.is_none() && connection.has_socket());
        for index in lost {
            self.connections.at_mut(index).ends_by(CloseReason::Internal);
            self.reset(index, ctx);
        }
        let (now, net) = (ctx.now, &*ctx.net);
        let forbidden = self
            .indices(|connection| !connection.is_kept && standing(connection, now, net) == Standing::Refused);
        forbidden.into_iter().for_each(|index| self.prohibit(index, ctx));
        let (now, net) = (ctx.now, &*ctx.net);
        let without_proof = self.indices(|connection| {
            !connection.is_kept
                && connection.proof.is_none()
                && standing(connection, now, net) == Standing::OnProof
        });
        for index in without_proof {
            self.connections.at_mut(index).require_proof();
        }
    }

    /// Returns the connection of a flow, so that its timer can be armed.
    pub(crate) fn timer_of(&mut self, flow: FlowId) -> Option<&mut Timer> {
        match flow.kind {
            Kind::Tcp => Some(&mut self.connections.get_mut(flow.index, flow.generation)?.timer),
            Kind::Joined => self.joined.timer_of(flow),
            _ => None,
        }
    }
}

impl TcpState {
    /// Returns true if a connection in this state has a host socket.
    const fn has_socket(self) -> bool {
        match self {
            Self::Connecting { .. } | Self::SynReceived | Self::SynSent | Self::Open => true,
            Self::TimeWait { .. } | Self::Failed => false,
        }
    }
}

impl<S> Connection<S> {
    /// Returns true if the host connection is being opened.
    fn is_connecting(&self) -> bool {
        matches!(self.state, TcpState::Connecting { .. }) || self.connects_after_accept()
    }

    /// Returns true if the connection has a host socket.
    fn has_socket(&self) -> bool {
        self.state.has_socket() && !self.precedes_socket()
    }

    /// Checks that the values of a connection that was read do not contradict each other, so that no calculation with them
    /// exceeds its range.
    fn check(&self, has_socket: bool) -> Result<(), StateError> {
        check(has_socket == self.has_socket())?;
        check((self.state == TcpState::SynSent) <= self.listener.is_some())?;
        check(self.key.guest.is_ipv4() == self.key.remote.is_ipv4())?;
        let down = &self.down;
        let is_within = |from: Seq, at: Seq, to: Seq| !at.before(from) && !to.before(at);
        check(is_within(down.una, down.nxt, down.max) && down.max.past(down.una) <= MOST_SENT)?;
        check(
            down.fin
                .is_none_or(|fin| down.max == fin + 1 || !down.max.after(fin)),
        )?;
        check((MIN_MSS..=u32::from(u16::MAX)).contains(&down.mss))?;
        check(down.scale <= MOST_SCALE && down.wnd <= MOST_SENT && down.max_wnd <= MOST_SENT)?;
        check(down.recovery.is_sound(down.una, down.max))?;
        let up = &self.up;
        check([0, SCALE].contains(&up.scale))?;
        check(up.edge.past(up.next) <= MOST_RECEIVED && up.want.past(up.next) <= MOST_RECEIVED)?;
        check((FIRST_WINDOW..=WIDEST_WINDOW).contains(&up.limit) && up.gathered == 0)?;
        check(up.spill.len() <= MOST_RECEIVED && up.reorder.is_sound(up.next))
    }
}

/// Maximum window that a guest can advertise (RFC 7323 section 2.3), and its greatest shift.
const MOST_SENT: u32 = 1 << 30;
const MOST_SCALE: u8 = 14;

/// Maximum of the receive window, whatever its limit: 16 bits and the shift.
const MOST_RECEIVED: u32 = 1 << (16 + SCALE);
