//! Connections of clients on this host that are joined with a socket of the guest's network namespace, and of programs of the
//! guest that are joined with a socket of the host, so that their data passes no link.
//!
//! A client whose address is a loopback address cannot be shown to the guest, so nothing is lost if the guest's kernel
//! sees a connection of its own interface address instead. The bytes of each direction wait in the receive queue of one
//! socket until the other socket accepts them, which is also the back-pressure. If nothing in the guest accepts the
//! connection, the client is forwarded over the link, which refuses it with the guest's own reply.

mod direction;
mod half_closed;
mod state;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;

use super::accept::{AcceptedClient, RateCheck};
use super::idle::FIN_TIMEOUT;
use super::{Tcp, events, loopback_forward};
use crate::config::{Published, PublishedPath};
use crate::ctx::{Ctx, Net};
use crate::flow_dump::{Flow, Phase, SLOTS, Traffic};
use crate::flow_events::{Announcement, CloseReason, FlowEnds, Grounds};
use crate::host::{AcceptedConnection, Connect, MoveError};
use crate::slab::Slab;
use crate::state::flow_record;
use crate::timer::Timer;
use crate::{Failure, FlowId, Host, Instant, Kind, Readiness, Transmit};
use direction::{Direction, Progress};
use half_closed::{HALF_CLOSED_PROBES, HalfClosed};

/// Time after which a pending connect to the guest is given up. A program of the guest accepts at once, unless its accept
/// queue is full; then the kernel sends another SYN after 1 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Age at which keepalive is enabled on both sockets, so that no connection outlives its ends. Younger connections do not
/// need the two system calls.
const KEEPALIVE_AGE: Duration = Duration::from_secs(600);

/// Connection between a client and a server, of which one is a program on this host and the other one of the guest.
#[derive(Debug)]
pub(super) struct JoinedConnection<S> {
    published: Published,
    /// Address and port of the client.
    client: SocketAddr,
    /// Address and port of the server, as flows and events show it.
    server: SocketAddr,
    /// Address and port to which the server's socket is connected.
    to: SocketAddr,
    grounds: Grounds,
    /// The client's socket, which was accepted.
    accepted: S,
    /// The server's socket; `None` while the connection waits for one of the guest's network namespace.
    connected: Option<S>,
    is_connected: bool,
    /// Direction from the client to the server.
    forth: Direction,
    /// Direction from the server to the client.
    back: Direction,
    timer: Timer,
    /// True if the connection is in the list of ready flows.
    is_queued: bool,
    opened: Instant,
    announcement: Announcement,
}

flow_record! { JoinedConnection {
    published, client, server, to, grounds, is_connected, forth, back, is_queued, opened, announcement,
} sockets { accepted: S, connected: Option<S> } elsewhere { timer = Timer::default() } }

impl<S> JoinedConnection<S> {
    /// Returns true if a program of the guest is the client.
    const fn is_from_guest(&self) -> bool {
        self.published.is_in_guest()
    }

    /// Returns true if the direction from the guest has ended, and the other one has not.
    const fn is_half_closed(&self) -> bool {
        let (of_guest, of_host) = match self.is_from_guest() {
            true => (&self.forth, &self.back),
            false => (&self.back, &self.forth),
        };
        of_guest.has_ended && !of_host.has_ended
    }

    /// Returns the socket of the guest's network namespace.
    const fn guest_socket(&mut self) -> Option<&mut S> {
        match self.is_from_guest() {
            true => Some(&mut self.accepted),
            false => self.connected.as_mut(),
        }
    }

    fn ends(&self) -> FlowEnds {
        match self.is_from_guest() {
            true => loopback_forward::ends(self.client, self.server),
            false => events::client_ends(self.server, self.client),
        }
    }

    const fn traffic(&self) -> Traffic {
        let (up, down) = match self.is_from_guest() {
            true => (self.forth.moved, self.back.moved),
            false => (self.back.moved, self.forth.moved),
        };
        Traffic { up, down }
    }

    /// Returns the reason of the end of the connection after a failure of the client's socket or the server's.
    fn reason(&self, failure: Failure, of_server: bool) -> CloseReason {
        match (failure, of_server != self.is_from_guest()) {
            (Failure::Reset, true) => CloseReason::GuestReset,
            (failure, _) => CloseReason::of_failure(failure),
        }
    }

    fn report_opened(&mut self, id: FlowId, target: Option<SocketAddr>, net: &mut Net, now: Instant) {
        self.announcement = net.report_opened(id, self.ends(), target, self.grounds, now);
    }

    fn report_closed(&mut self, id: FlowId, reason: CloseReason, net: &mut Net, now: Instant) {
        if net.events.is_none() || !(self.is_connected || self.is_from_guest()) {
            return;
        }
        let end = (reason, self.traffic(), now.since(self.opened));
        net.report_closed(id, self.ends(), self.announcement, end, now);
        self.announcement = Announcement::Closed;
    }
}

/// Returns the address in the guest's network namespace to which a client is connected; `None` if the client has to be
/// forwarded over the link.
pub(super) fn inside<S>(client: &AcceptedClient<S>, net: &Net) -> Option<SocketAddr> {
    // The bandwidth limit is enforced on frames.
    if !client.accepted.peer.ip().is_loopback() || net.throttle.is_limited() {
        return None;
    }
    let guest = client.guest;
    // Other targets are behind an interface of the guest.
    if net.config.plan.guest(guest.ip()) != Some(guest.ip()) {
        return None;
    }
    match client.published.path {
        PublishedPath::Link | PublishedPath::FromGuest => None,
        PublishedPath::Shortest => Some(guest),
        PublishedPath::GuestLoopback => {
            let loopback: IpAddr = match guest {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            Some(SocketAddr::new(loopback, guest.port()))
        }
    }
}

impl<S> Tcp<S> {
    /// Joins an accepted client with a socket in the guest's network namespace that is connected to the address `to` there.
    /// Returns the client if it has to be forwarded over the link, because the host has no such socket, or nothing in the guest
    /// accepts the connection.
    pub(super) fn join<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        mut client: AcceptedClient<S>,
        to: SocketAddr,
        grounds: Grounds,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Option<AcceptedClient<S>> {
        let (outer, inner) = self.joined_ids(ctx.net);
        let (socket, connect) = match ctx.host.guest_connect(inner, to) {
            Ok((socket, connect)) => (Some(socket), connect),
            // A socket arrives soon. Otherwise it would depend on chance which address the service sees.
            Err(Failure::WouldBlock) => (None, Connect::Pending),
            Err(_) => return Some(client),
        };
        if ctx.host.tcp_assign(outer, &mut client.accepted.socket).is_err() {
            if let Some(socket) = socket {
                ctx.host.abort(socket);
            }
            return Some(client);
        }
        if socket.is_none() {
            self.joined.waiting.push_back(outer);
        }
        self.add_joined(client, to, socket, connect, grounds, ctx);
        None
    }

    /// Adds the connection of an accepted client to `to`, with the server's socket and the state of its connect.
    pub(super) fn add_joined<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        client: AcceptedClient<S>,
        to: SocketAddr,
        socket: Option<S>,
        connect: Connect,
        grounds: Grounds,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let (id, _) = self.joined_ids(ctx.net);
        let published = client.published;
        self.joined.connections.insert_with(|_, _| JoinedConnection {
            to,
            published,
            client: client.accepted.peer,
            server: client.guest,
            grounds,
            accepted: client.accepted.socket,
            connected: socket,
            is_connected: false,
            forth: Direction::default(),
            back: Direction::default(),
            timer: Timer::default(),
            is_queued: false,
            opened: ctx.now,
            announcement: Announcement::default(),
        });
        ctx.net.joined_opened(share(&published));
        let connection = self.joined.connections.at_mut(id.index);
        if connection.is_from_guest() {
            connection.report_opened(id, Some(to), ctx.net, ctx.now);
        }
        match connect {
            Connect::Done => self.joined_connected(id.index, ctx),
            Connect::Pending => {
                let due = ctx.now + CONNECT_TIMEOUT;
                ctx.net.timers.arm(&mut connection.timer, id, due);
            }
        }
    }

    /// Returns the flows of the client's socket and the server's of the next connection.
    pub(super) fn joined_ids(&mut self, net: &Net) -> (FlowId, FlowId) {
        let (index, generation) = self.joined.connections.vacant();
        let of = |kind| net.flow(kind, index, generation);
        (of(Kind::Joined), of(Kind::JoinedServer))
    }

    /// Handles an event of one of the sockets of a joined connection.
    pub fn handle_joined_socket<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ready: Readiness,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some(connection) = self.joined.connections.get_mut(flow.index, flow.generation) else {
            return;
        };
        let is_server = flow.kind == Kind::JoinedServer;
        let (source, sink) = match is_server {
            false => (&mut connection.forth, &mut connection.back),
            true => (&mut connection.back, &mut connection.forth),
        };
        source.is_readable |= ready.readable || ready.end || ready.error;
        sink.is_writable |= ready.writable || ready.error;
        // No read returns the error: behind the end of the stream, or because the sink takes no data in front of it.
        let hides_error = source.has_ended || !source.is_writable;
        let Some(server) = &mut connection.connected else {
            return;
        };
        if !connection.is_connected {
            if is_server {
                match ctx.host.tcp_connected(server) {
                    Ok(()) => self.joined_connected(flow.index, ctx),
                    Err(Failure::WouldBlock) => {}
                    Err(failure) => self.joined_failed(flow.index, failure, ctx),
                }
            }
            return;
        }
        if ready.error && hides_error {
            let socket = if is_server {
                server
            } else {
                &mut connection.accepted
            };
            if let Some(failure) = ctx.host.tcp_error(socket) {
                let reason = connection.reason(failure, is_server);
                return self.abort_joined(flow.index, reason, ctx);
            }
        }
        self.move_joined(flow.index, ctx);
    }

    /// Continues with a joined connection that has used up its quantum.
    pub fn handle_joined_ready<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        if let Some(connection) = self.joined.connections.get_mut(flow.index, flow.generation) {
            connection.is_queued = false;
            self.move_joined(flow.index, ctx);
        }
    }

    /// Handles the timer of a joined connection.
    pub fn handle_joined_timeout<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some(connection) = self.joined.connections.get_mut(flow.index, flow.generation) else {
            return;
        };
        connection.timer.fired();
        if !connection.is_connected {
            if connection.connected.is_none() {
                // Further clients must not wait as long.
                ctx.host.guest_sockets_late();
                self.joined.waiting.retain(|waiting| *waiting != flow);
            }
            return self.joined_failed(flow.index, Failure::TimedOut, ctx);
        }
        for socket in core::iter::once(&mut connection.accepted).chain(&mut connection.connected) {
            ctx.host.tcp_keepalive(socket, None);
        }
        if connection.is_half_closed()
            && let Some(socket) = connection.guest_socket()
        {
            ctx.host.tcp_keepalive(socket, Some(HALF_CLOSED_PROBES));
        }
    }

    /// Connects the connections that wait for a socket of the guest's network namespace, because the host has received some.
    pub fn handle_guest_sockets<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        while let Some(&outer) = self.joined.waiting.front() {
            let connections = &mut self.joined.connections;
            // The connection may have ended.
            if let Some(connection) = connections.get_mut(outer.index, outer.generation)
                && connection.connected.is_none()
            {
                let inner = FlowId {
                    kind: Kind::JoinedServer,
                    ..outer
                };
                match ctx.host.guest_connect(inner, connection.to) {
                    Err(Failure::WouldBlock) => return,
                    Err(_) => self.leave_to_link(outer.index, ctx),
                    Ok((socket, connect)) => {
                        connection.connected = Some(socket);
                        if connect == Connect::Done {
                            self.joined_connected(outer.index, ctx);
                        }
                    }
                }
            }
            self.joined.waiting.pop_front();
        }
    }

    /// Resets a joined connection on both sides; returns false if there is none.
    pub(crate) fn end_joined<H: Host<Socket = S>, T>(
        &mut self,
        flow: FlowId,
        reason: CloseReason,
        ctx: &mut Ctx<'_, H, T>,
    ) -> bool {
        let exists = self.joined.connections.get(flow.index, flow.generation).is_some();
        if exists {
            self.abort_joined(flow.index, reason, ctx);
        }
        exists
    }

    /// Resets all joined connections.
    pub(super) fn abort_all_joined<H: Host<Socket = S>, T>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        let all: Vec<u32> = self.joined.connections.iter().map(|(index, ..)| index).collect();
        for index in all {
            self.abort_joined(index, CloseReason::GuestGone, ctx);
        }
    }

    /// Reports that all joined connections have ended.
    pub(super) fn report_all_joined_closed(&mut self, net: &mut Net, now: Instant) {
        let all: Vec<u32> = self.joined.connections.iter().map(|(index, ..)| index).collect();
        for index in all {
            let id = net.flow(Kind::Joined, index, self.joined.connections.generation(index));
            let connection = self.joined.connections.at_mut(index);
            connection.report_closed(id, CloseReason::Internal, net, now);
        }
    }

    /// Returns a page of the list of joined connections that begins at the slot `first`, and the number of slots.
    pub(crate) fn joined_page(&self, first: u32, net: &Net, now: Instant) -> (Vec<Flow>, u32) {
        let flows = self
            .joined
            .connections
            .part(first, SLOTS)
            .map(|(index, generation, connection)| {
                let ends = connection.ends();
                Flow {
                    id: net.flow(Kind::Joined, index, generation),
                    protocol: ends.protocol,
                    guest: ends.guest,
                    remote: ends.remote,
                    came_in: ends.came_in,
                    phase: match connection {
                        _ if !connection.is_connected => Phase::Handshake,
                        _ if connection.forth.has_ended || connection.back.has_ended => Phase::Closing,
                        _ => Phase::Open,
                    },
                    age: now.since(connection.opened),
                    traffic: connection.traffic(),
                }
            });
        (flows.collect(), self.joined.connections.slots())
    }

    /// Begins to move data, because the connect to the server has succeeded.
    fn joined_connected<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let id = self.joined_id(index, ctx.net);
        let connection = self.joined.connections.at_mut(index);
        connection.is_connected = true;
        ctx.net.counters.tcp_joined += 1;
        if !connection.is_from_guest() {
            ctx.net.counters.tcp_accepted += 1;
            connection.report_opened(id, None, ctx.net, ctx.now);
        }
        let due = ctx.now + KEEPALIVE_AGE;
        ctx.net.timers.arm(&mut connection.timer, id, due);
        // The client has usually sent its request already. The events of both sockets follow.
        connection.forth.is_readable = true;
        connection.forth.is_writable = true;
        connection.back.is_writable = true;
        self.move_joined(index, ctx);
    }

    /// Moves the data of both directions, and ends the connection if both have ended or one has failed.
    fn move_joined<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let id = self.joined_id(index, ctx.net);
        ctx.net.current_flow = Some(id);
        let connection = self.joined.connections.at_mut(index);
        let was_half_closed = connection.is_half_closed();
        let Some(server) = &mut connection.connected else {
            return;
        };
        let client = &mut connection.accepted;
        let had_back_ended = connection.back.has_ended;
        let forth = connection.forth.advance(client, server, ctx.host);
        // After an error, the last data in the other direction is still delivered, as far as its receiver takes it.
        let back = connection.back.advance(server, client, ctx.host);
        let failed = match (forth, back) {
            (Err(MoveError::Source(failure)), _) => Some((failure, false)),
            (Err(MoveError::Sink(failure)), _) => Some((failure, true)),
            (_, Err(MoveError::Source(failure))) => Some((failure, true)),
            (_, Err(MoveError::Sink(failure))) => Some((failure, false)),
            (Ok(_), Ok(_)) => None,
        };
        if let Some((failure, of_server)) = failed {
            let reason = connection.reason(failure, of_server);
            return self.abort_joined(index, reason, ctx);
        }
        if connection.forth.has_ended && connection.back.has_ended {
            let reason = match had_back_ended != connection.is_from_guest() {
                true => CloseReason::GuestFin,
                false => CloseReason::PeerFin,
            };
            return self.remove_joined(index, reason, H::close, ctx);
        }
        let has_more = [forth, back].contains(&Ok(Progress::HasMore));
        if has_more && !connection.is_queued {
            connection.is_queued = true;
            ctx.net.ready.push_back(id);
        }
        if connection.is_half_closed() && !was_half_closed {
            let due = ctx.now + FIN_TIMEOUT;
            ctx.net.timers.arm(&mut connection.timer, id, due);
            let moved = connection.forth.moved + connection.back.moved;
            let since = ctx.now;
            self.joined.add_half_closed(HalfClosed { id, since, moved });
        }
    }

    /// Forwards the client of a connection whose connect has failed over the link, or resets it if it is a program of the guest.
    fn joined_failed<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        failure: Failure,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let connection = self.joined.connections.at_mut(index);
        if !connection.is_from_guest() {
            return self.leave_to_link(index, ctx);
        }
        loopback_forward::count_failure(failure, ctx.net);
        self.remove_joined(index, CloseReason::ConnectFailed(failure), H::abort, ctx);
    }

    /// Forwards the client of a connection that the guest does not accept over the link.
    fn leave_to_link<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let mut connection = self.take_joined(index, ctx.net);
        if let Some(server) = connection.connected.take() {
            ctx.host.abort(server);
        }
        let id = self.vacant(ctx.net);
        if ctx.host.tcp_assign(id, &mut connection.accepted).is_err() {
            return ctx.host.abort(connection.accepted);
        }
        let client = AcceptedClient {
            published: connection.published,
            guest: connection.server,
            accepted: AcceptedConnection {
                socket: connection.accepted,
                peer: connection.client,
            },
        };
        self.accept_over_link(client, connection.grounds, RateCheck::Done, ctx);
    }

    pub(super) fn abort_joined<H: Host<Socket = S>, T>(
        &mut self,
        index: u32,
        reason: CloseReason,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        ctx.net.counters.tcp_reset_by_host += u64::from(reason == CloseReason::PeerReset);
        ctx.net.counters.tcp_reset_by_guest += u64::from(reason == CloseReason::GuestReset);
        self.remove_joined(index, reason, H::abort, ctx);
    }

    /// Removes a connection, and has `close` close both sockets.
    fn remove_joined<H: Host<Socket = S>, T>(
        &mut self,
        index: u32,
        reason: CloseReason,
        close: impl Fn(&mut H, S),
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let id = self.joined_id(index, ctx.net);
        let connection = self.joined.connections.at_mut(index);
        connection.report_closed(id, reason, ctx.net, ctx.now);
        let connection = self.take_joined(index, ctx.net);
        for socket in core::iter::once(connection.accepted).chain(connection.connected) {
            close(ctx.host, socket);
        }
    }

    fn take_joined(&mut self, index: u32, net: &mut Net) -> JoinedConnection<S> {
        let mut connection = self.joined.connections.remove(index);
        net.joined_closed(share(&connection.published));
        net.timers.disarm(&mut connection.timer);
        connection
    }

    fn joined_id(&self, index: u32, net: &Net) -> FlowId {
        net.flow(Kind::Joined, index, self.joined.connections.generation(index))
    }
}

/// Returns the key under which the clients of a port are counted; `None` if they are programs of the guest.
pub(super) fn share(published: &Published) -> Option<u32> {
    (!published.is_in_guest()).then(|| published.share_key())
}

/// Joined connections of one worker.
#[derive(Debug)]
pub(super) struct JoinedTable<S> {
    connections: Slab<JoinedConnection<S>>,
    /// Connections that wait for a socket of the guest's network namespace, in the order of their clients; some of them may have
    /// ended.
    waiting: VecDeque<FlowId>,
    /// Sockets of a restored state whose connections end, because the policy or the caller has refused the other one.
    lost: Vec<S>,
    /// Connections whose guest has ended its direction; some of them may have ended.
    half_closed: VecDeque<HalfClosed>,
}

impl<S> JoinedTable<S> {
    /// Returns the connections of programs of the guest that `which` selects by the address and port to which the program has
    /// connected, and the time at which it has.
    pub(super) fn of_guest(&self, which: impl Fn(SocketAddr, Instant) -> bool) -> Vec<u32> {
        let all = self.connections.iter();
        all.filter(|(.., connection)| {
            connection.is_from_guest() && which(connection.server, connection.opened)
        })
        .map(|(index, ..)| index)
        .collect()
    }
}

impl<S> Default for JoinedTable<S> {
    fn default() -> Self {
        Self {
            connections: Slab::default(),
            waiting: VecDeque::new(),
            half_closed: VecDeque::new(),
            lost: Vec::new(),
        }
    }
}
