//! The joined connections of a state.

use std::collections::VecDeque;

use super::{HalfClosed, JoinedConnection, JoinedTable, inside, share};
use crate::config::Published;
use crate::ctx::{Ctx, Net};
use crate::egress::{DecisionGround, EgressProtocol};
use crate::host::AcceptedConnection;
use crate::slab::Slab;
use crate::state::{Adoption, Reader, SocketDescription, SocketKind, Sockets, StateError, Writer, check};
use crate::tcp::accept::AcceptedClient;
use crate::tcp::{Tcp, decided};
use crate::timer::Timer;
use crate::{FlowId, Host, Kind, Transmit};

impl<S> JoinedTable<S> {
    pub(in crate::tcp) fn save<'a>(&'a self, net: &Net, to: &mut Writer<'_>, sockets: &mut Sockets<'a, S>) {
        let Self {
            connections,
            waiting,
            half_closed,
            lost: _,
        } = self;
        let mut places = Vec::new();
        for (index, generation, connection) in connections.iter() {
            let [accepted, connected] = connection.descriptions(
                [Kind::Joined, Kind::JoinedServer].map(|kind| net.flow(kind, index, generation)),
            );
            let accepted = sockets.add(&connection.accepted, accepted);
            let connected = connection
                .connected
                .as_ref()
                .map(|socket| sockets.add(socket, connected));
            places.push((accepted, connected));
        }
        let mut places = places.into_iter();
        connections.save(to, |to, _, _, connection| {
            to.put(&places.next().expect("a place for each connection"));
            connection.save_record(to);
        });
        to.put(waiting);
        to.put(half_closed);
    }

    pub(in crate::tcp) fn load(
        &mut self,
        net: &mut Net,
        from: &mut Reader<'_>,
        adoption: &mut Adoption<'_, S>,
    ) -> Result<(), StateError> {
        let mut lost = Vec::new();
        let most = net.most_flows();
        self.connections = Slab::load(from, most, |from, index, generation| {
            let (accepted, connected): (u32, Option<u32>) = from.get()?;
            let connection = JoinedConnection::load_record(from)?;
            check(connected.is_some() || !connection.is_connected && !connection.is_from_guest())?;
            let descriptions = connection.descriptions(
                [Kind::Joined, Kind::JoinedServer].map(|kind| net.flow(kind, index, generation)),
            );
            let is_permitted = connection.is_permitted(net);
            let [accepted_is, connected_is] = descriptions.each_ref().map(|it| is_permitted.then_some(it));
            let accepted = adoption.take(accepted, accepted_is)?;
            let connected_socket = match connected {
                Some(place) => adoption.take(place, connected_is)?,
                None => None,
            };
            match accepted {
                Some(accepted) if connected.is_some() == connected_socket.is_some() => {
                    Ok(Some(connection.with_sockets(accepted, connected_socket)))
                }
                accepted => {
                    adoption.refuse();
                    lost.extend(accepted);
                    lost.extend(connected_socket);
                    Ok(None)
                }
            }
        })?;
        self.lost = lost;
        for (_, _, connection) in self.connections.iter() {
            net.joined_opened(share(&connection.published));
        }
        self.waiting = from.get::<VecDeque<FlowId>>()?;
        self.half_closed = from.get::<VecDeque<HalfClosed>>()?;
        let mut flows = self
            .waiting
            .iter()
            .chain(self.half_closed.iter().map(|entry| &entry.id));
        let is_short = self.waiting.len() <= 2 * most && self.half_closed.len() <= 2 * most + 1;
        check(is_short && flows.all(|flow| flow.kind == Kind::Joined))
    }

    pub(in crate::tcp) fn timer_of(&mut self, flow: FlowId) -> Option<&mut Timer> {
        let connection = self.connections.get_mut(flow.index, flow.generation)?;
        Some(&mut connection.timer)
    }
}

impl<S> JoinedConnection<S> {
    /// Describes the sockets of the client and of the server.
    fn descriptions(&self, [accepted, connected]: [FlowId; 2]) -> [SocketDescription; 2] {
        let kind = match (self.is_from_guest(), self.is_connected) {
            (false, _) => {
                return [
                    SocketDescription::new(accepted, SocketKind::TcpAccepted).bound_to(self.published.host),
                    SocketDescription::new(connected, SocketKind::GuestTcp).connected_to([self.to]),
                ];
            }
            (true, _) if self.is_redirected() => SocketKind::Stream,
            (true, true) => SocketKind::TcpConnected,
            (true, false) => SocketKind::TcpConnecting,
        };
        let connected = SocketDescription::new(connected, kind);
        [
            SocketDescription::new(accepted, SocketKind::GuestTcp).connected_to([self.client]),
            match kind {
                SocketKind::Stream => connected,
                _ => connected.connected_to([self.to]),
            },
        ]
    }

    /// Returns true if the decider has redirected the connection.
    fn is_redirected(&self) -> bool {
        self.grounds.verdict == Some(DecisionGround::Redirect)
    }

    /// Returns true if a program of the guest may have such a connection. The egress rules are applied later.
    fn is_permitted_to_guest(&self, net: &Net) -> bool {
        let target = net.policy.translate(EgressProtocol::Tcp, self.server);
        is_published(&self.published, net)
            && self.published.host == self.server
            && target.is_ok_and(|target| target == self.to || self.is_redirected() && net.decisions.is_some())
    }

    /// Returns true if such a connection is permitted.
    fn is_permitted(&self, net: &Net) -> bool {
        if self.is_from_guest() {
            return self.is_permitted_to_guest(net);
        }
        let client = AcceptedClient {
            published: self.published,
            guest: self.server,
            accepted: AcceptedConnection {
                socket: (),
                peer: self.client,
            },
        };
        is_published(&self.published, net)
            && self.published.guest(&net.config.plan) == Some(self.server)
            && inside(&client, net) == Some(self.to)
    }
}

/// Returns true if the port is published.
fn is_published(port: &Published, net: &Net) -> bool {
    net.config.published.contains(port)
}

impl<S> AcceptedClient<S> {
    pub(in crate::tcp) fn save<'a>(&'a self, to: &mut Writer<'_>, sockets: &mut Sockets<'a, S>, net: &Net) {
        let Self {
            published,
            guest,
            accepted: AcceptedConnection { socket, peer },
        } = self;
        to.put(&sockets.add(socket, client_description(published, net)));
        to.put(published);
        to.put(guest);
        to.put(peer);
    }

    /// Reads a client; `None` if its socket is refused.
    pub(in crate::tcp) fn load(
        from: &mut Reader<'_>,
        adoption: &mut Adoption<'_, S>,
        net: &Net,
    ) -> Result<Option<Self>, StateError> {
        let place = from.get()?;
        let (published, guest) = from.get()?;
        let peer = from.get()?;
        let is_permitted = is_published(&published, net) && published.server(&net.config.plan) == Some(guest);
        let description = client_description(&published, net);
        let socket = adoption.take_only(place, is_permitted.then_some(&description))?;
        Ok(socket.map(|socket| Self {
            published,
            guest,
            accepted: AcceptedConnection { socket, peer },
        }))
    }
}

fn client_description(published: &Published, net: &Net) -> SocketDescription {
    let kind = match published.is_in_guest() {
        true => SocketKind::GuestTcp,
        false => SocketKind::TcpAccepted,
    };
    SocketDescription::new(decided::undecided(net), kind).bound_to(published.host)
}

impl<S> Tcp<S> {
    /// Resets the clients of restored connections whose other socket was refused.
    pub(in crate::tcp) fn end_lost_joined<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        for socket in core::mem::take(&mut self.joined.lost) {
            ctx.host.abort(socket);
        }
    }
}
