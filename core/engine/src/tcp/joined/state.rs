//! The joined connections of a state.

use std::collections::VecDeque;

use super::{JoinedConnection, JoinedTable, inside};
use crate::config::Published;
use crate::ctx::{Ctx, Net};
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
            lost: _,
        } = self;
        let mut places = Vec::new();
        for (index, generation, connection) in connections.iter() {
            let [outer, inner] = connection.descriptions([Kind::Joined, Kind::JoinedGuest].map(|kind| {
                net.flow(kind, index, generation)
            }));
            let outer = sockets.add(&connection.outer, outer);
            let inner = connection.inner.as_ref().map(|socket| sockets.add(socket, inner));
            places.push((outer, inner));
        }
        let mut places = places.into_iter();
        connections.save(to, |to, _, _, connection| {
            to.put(&places.next().expect("a place for each connection"));
            connection.save_record(to);
        });
        to.put(waiting);
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
            let (outer, inner): (u32, Option<u32>) = from.get()?;
            let connection = JoinedConnection::load_record(from)?;
            check(inner.is_some() || !connection.is_connected)?;
            let descriptions = connection.descriptions([Kind::Joined, Kind::JoinedGuest].map(|kind| {
                net.flow(kind, index, generation)
            }));
            let is_permitted = connection.is_permitted(net);
            let [outer_is, inner_is] = descriptions.each_ref().map(|it| is_permitted.then_some(it));
            let outer = adoption.take(outer, outer_is)?;
            let inner_socket = match inner {
                Some(place) => adoption.take(place, inner_is)?,
                None => None,
            };
            match outer {
                Some(outer) if inner.is_some() == inner_socket.is_some() => {
                    Ok(Some(connection.with_sockets(outer, inner_socket)))
                }
                outer => {
                    adoption.refuse();
                    lost.extend(outer);
                    lost.extend(inner_socket);
                    Ok(None)
                }
            }
        })?;
        self.lost = lost;
        for (_, _, connection) in self.connections.iter() {
            net.joined_opened(connection.published.share_key());
        }
        self.waiting = from.get::<VecDeque<FlowId>>()?;
        check(self.waiting.len() <= 2 * most && self.waiting.iter().all(|flow| flow.kind == Kind::Joined))
    }

    pub(in crate::tcp) fn timer_of(&mut self, flow: FlowId) -> Option<&mut Timer> {
        let connection = self.connections.get_mut(flow.index, flow.generation)?;
        Some(&mut connection.timer)
    }
}

impl<S> JoinedConnection<S> {
    /// Describes the sockets of the client and of the guest.
    fn descriptions(&self, [outer, inner]: [FlowId; 2]) -> [SocketDescription; 2] {
        [
            SocketDescription::new(outer, SocketKind::TcpAccepted).bound_to(self.published.host),
            SocketDescription::new(inner, SocketKind::GuestTcp).connected_to([self.to]),
        ]
    }

    /// Returns true if a client of a published port may have such a connection.
    fn is_permitted(&self, net: &Net) -> bool {
        let client = AcceptedClient {
            published: self.published,
            guest: self.guest,
            accepted: AcceptedConnection {
                socket: (),
                peer: self.client,
            },
        };
        is_published(&self.published, net)
            && self.published.guest(&net.config.plan) == Some(self.guest)
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
        let is_permitted =
            is_published(&published, net) && published.guest(&net.config.plan) == Some(guest);
        let description = client_description(&published, net);
        let Some(socket) = adoption.take(place, is_permitted.then_some(&description))? else {
            adoption.refuse();
            return Ok(None);
        };
        Ok(Some(Self {
            published,
            guest,
            accepted: AcceptedConnection { socket, peer },
        }))
    }
}

fn client_description(published: &Published, net: &Net) -> SocketDescription {
    SocketDescription::new(decided::undecided(net), SocketKind::TcpAccepted).bound_to(published.host)
}

impl<S> Tcp<S> {
    /// Resets the clients of restored connections whose other socket was refused.
    pub(in crate::tcp) fn end_lost_joined<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        for socket in core::mem::take(&mut self.joined.lost) {
            ctx.host.abort(socket);
        }
    }
}
