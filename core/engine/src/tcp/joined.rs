//! Connections of clients on this host that are joined with a socket of the guest's network namespace, so that their data
//! passes no link.
//!
//! A client whose address is a loopback address cannot be shown to the guest, so nothing is lost if the guest's kernel
//! sees a connection of its own interface address instead. The bytes of each direction wait in the receive queue of one
//! socket until the other socket accepts them, which is also the back-pressure. If nothing in the guest accepts the
//! connection, the client is forwarded over the link, which refuses it with the guest's own reply.

mod state;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;

use super::accept::{AcceptedClient, RateCheck};
use super::{Tcp, events};
use crate::config::{Published, PublishedPath};
use crate::ctx::{Ctx, Net};
use crate::egress::EgressProtocol;
use crate::flow_dump::{Flow, Phase, SLOTS, Traffic};
use crate::flow_events::{Announcement, CloseReason, FlowEnds, Grounds};
use crate::host::{AcceptedConnection, Connect, MoveError, MoveState};
use crate::slab::Slab;
use crate::timer::Timer;
use crate::{Failure, FlowId, Host, Instant, Kind, Readiness, Transmit};
use crate::state::{flow_record, record};

/// Number of bytes that one direction of a connection may move in one turn.
const QUANTUM: usize = 1 << 20;

/// Time after which a pending connect to the guest is given up. A program of the guest accepts at once, unless its accept
/// queue is full; then the kernel sends another SYN after 1 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Age at which keepalive is enabled on both sockets, so that no connection outlives its ends. Younger connections do not
/// need the two system calls.
const KEEPALIVE_AGE: Duration = Duration::from_secs(600);

/// Connection between a client on this host and a socket in the guest's network namespace.
#[derive(Debug)]
pub(super) struct JoinedConnection<S> {
    published: Published,
    /// Address and port of the client.
    client: SocketAddr,
    /// Address and port of the guest.
    guest: SocketAddr,
    /// Address and port to which the socket in the guest's network namespace is connected.
    to: SocketAddr,
    grounds: Grounds,
    /// The client's socket.
    outer: S,
    /// The socket in the guest's network namespace; `None` while the connection waits for one.
    inner: Option<S>,
    is_connected: bool,
    /// Direction from the client to the guest.
    down: Direction,
    /// Direction from the guest to the client.
    up: Direction,
    timer: Timer,
    /// True if the connection is in the list of ready flows.
    is_queued: bool,
    opened: Instant,
    traffic: Traffic,
    announcement: Announcement,
}

flow_record! { JoinedConnection {
    published, client, guest, to, grounds, is_connected, down, up, is_queued, opened, traffic, announcement,
} sockets { outer: S, inner: Option<S> } elsewhere { timer = Timer::default() } }

/// State of one direction of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Direction {
    /// The source may have data, the end of its stream, or an error.
    is_readable: bool,
    /// The sink may have room.
    is_writable: bool,
    /// The source has ended, and so has the stream to the sink.
    has_ended: bool,
}

record! { Direction { is_readable, is_writable, has_ended } }

/// Result of moving the data of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Both directions wait for an event, or have ended.
    Waits,
    /// The quantum is used up.
    HasMore,
}

impl Direction {
    /// Moves up to [`QUANTUM`] bytes, and ends the stream to `to` behind the last byte. The number of bytes is added to
    /// `moved`.
    fn advance<H: Host>(
        &mut self,
        from: &mut H::Socket,
        to: &mut H::Socket,
        moved: &mut u64,
        host: &mut H,
    ) -> Result<Progress, MoveError> {
        if self.has_ended || !self.is_readable || !self.is_writable {
            return Ok(Progress::Waits);
        }
        let (len, state) = host.tcp_move(from, to, QUANTUM)?;
        *moved += len as u64;
        match state {
            MoveState::More => return Ok(Progress::HasMore),
            MoveState::Drained => self.is_readable = false,
            MoveState::Full => self.is_writable = false,
            MoveState::Ended => {
                self.has_ended = true;
                host.tcp_shutdown(to).map_err(MoveError::Sink)?;
            }
        }
        Ok(Progress::Waits)
    }
}

impl<S> JoinedConnection<S> {
    fn ends(&self) -> FlowEnds {
        events::client_ends(self.guest, self.client)
    }

    fn report_closed(&mut self, id: FlowId, reason: CloseReason, net: &mut Net, now: Instant) {
        if net.events.is_none() || !self.is_connected {
            return;
        }
        let end = (reason, self.traffic, now.since(self.opened));
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
        PublishedPath::Link => None,
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
        let (index, generation) = self.joined.connections.vacant();
        let of = |kind| ctx.net.flow(kind, index, generation);
        let (outer, inner) = (of(Kind::Joined), of(Kind::JoinedGuest));
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
        let port = client.published.share_key();
        self.joined.connections.insert_with(|_, _| JoinedConnection {
            to,
            published: client.published,
            client: client.accepted.peer,
            guest: client.guest,
            grounds,
            outer: client.accepted.socket,
            inner: socket,
            is_connected: false,
            down: Direction::default(),
            up: Direction::default(),
            timer: Timer::default(),
            is_queued: false,
            opened: ctx.now,
            traffic: Traffic::default(),
            announcement: Announcement::default(),
        });
        ctx.net.joined_opened(port);
        match connect {
            Connect::Done => self.joined_connected(index, ctx),
            Connect::Pending => {
                let connection = self.joined.connections.at_mut(index);
                let due = ctx.now + CONNECT_TIMEOUT;
                ctx.net.timers.arm(&mut connection.timer, outer, due);
            }
        }
        None
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
        let is_guest = flow.kind == Kind::JoinedGuest;
        let (source, sink) = match is_guest {
            false => (&mut connection.down, &mut connection.up),
            true => (&mut connection.up, &mut connection.down),
        };
        source.is_readable |= ready.readable || ready.end || ready.error;
        sink.is_writable |= ready.writable || ready.error;
        // No read returns the error: behind the end of the stream, or because the sink takes no data in front of it.
        let hides_error = source.has_ended || !source.is_writable;
        let Some(inner) = &mut connection.inner else {
            return;
        };
        if !connection.is_connected {
            if is_guest {
                match ctx.host.tcp_connected(inner) {
                    Ok(()) => self.joined_connected(flow.index, ctx),
                    Err(Failure::WouldBlock) => {}
                    Err(_) => self.leave_to_link(flow.index, ctx),
                }
            }
            return;
        }
        if ready.error && hides_error {
            let socket = if is_guest { inner } else { &mut connection.outer };
            if let Some(failure) = ctx.host.tcp_error(socket) {
                return self.abort_joined(flow.index, reason(failure, is_guest), ctx);
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
            return self.leave_to_link(flow.index, ctx);
        }
        for socket in core::iter::once(&mut connection.outer).chain(&mut connection.inner) {
            ctx.host.tcp_keepalive(socket);
        }
    }

    /// Connects the connections that wait for a socket of the guest's network namespace, because the host has received some.
    pub fn handle_guest_sockets<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        while let Some(&outer) = self.joined.waiting.front() {
            let connections = &mut self.joined.connections;
            // The connection may have ended.
            if let Some(connection) = connections.get_mut(outer.index, outer.generation)
                && connection.inner.is_none()
            {
                let inner = FlowId {
                    kind: Kind::JoinedGuest,
                    ..outer
                };
                match ctx.host.guest_connect(inner, connection.to) {
                    Err(Failure::WouldBlock) => return,
                    Err(_) => self.leave_to_link(outer.index, ctx),
                    Ok((socket, connect)) => {
                        connection.inner = Some(socket);
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
            .map(|(index, generation, connection)| Flow {
                id: net.flow(Kind::Joined, index, generation),
                protocol: EgressProtocol::Tcp,
                guest: connection.guest,
                remote: Some(connection.client),
                came_in: true,
                phase: match connection {
                    _ if !connection.is_connected => Phase::Handshake,
                    _ if connection.down.has_ended || connection.up.has_ended => Phase::Closing,
                    _ => Phase::Open,
                },
                age: now.since(connection.opened),
                traffic: connection.traffic,
            });
        (flows.collect(), self.joined.connections.slots())
    }

    /// Begins to move data, because the connect to the guest has succeeded.
    fn joined_connected<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let id = self.joined_id(index, ctx.net);
        let connection = self.joined.connections.at_mut(index);
        connection.is_connected = true;
        ctx.net.counters.tcp_accepted += 1;
        ctx.net.counters.tcp_joined += 1;
        let (ends, grounds) = (connection.ends(), connection.grounds);
        connection.announcement = ctx.net.report_opened(id, ends, None, grounds, ctx.now);
        let due = ctx.now + KEEPALIVE_AGE;
        ctx.net.timers.arm(&mut connection.timer, id, due);
        // The client has usually sent its request already. The events of both sockets follow.
        connection.down.is_readable = true;
        connection.down.is_writable = true;
        connection.up.is_writable = true;
        self.move_joined(index, ctx);
    }

    /// Moves the data of both directions, and ends the connection if both have ended or one has failed.
    fn move_joined<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let id = self.joined_id(index, ctx.net);
        ctx.net.current_flow = Some(id);
        let connection = self.joined.connections.at_mut(index);
        let Some(guest) = &mut connection.inner else {
            return;
        };
        let client = &mut connection.outer;
        let was_up_ended = connection.up.has_ended;
        let traffic = &mut connection.traffic;
        let down = connection
            .down
            .advance(client, guest, &mut traffic.down, ctx.host);
        // After an error, the last data in the other direction is still delivered, as far as its receiver takes it.
        let up = connection.up.advance(guest, client, &mut traffic.up, ctx.host);
        let failed = match (down, up) {
            (Err(MoveError::Source(failure)), _) => Some(reason(failure, false)),
            (Err(MoveError::Sink(failure)), _) => Some(reason(failure, true)),
            (_, Err(MoveError::Source(failure))) => Some(reason(failure, true)),
            (_, Err(MoveError::Sink(failure))) => Some(reason(failure, false)),
            (Ok(_), Ok(_)) => None,
        };
        if let Some(reason) = failed {
            return self.abort_joined(index, reason, ctx);
        }
        if connection.down.has_ended && connection.up.has_ended {
            let reason = match was_up_ended {
                true => CloseReason::GuestFin,
                false => CloseReason::PeerFin,
            };
            return self.remove_joined(index, reason, H::close, ctx);
        }
        let has_more = [down, up].contains(&Ok(Progress::HasMore));
        if has_more && !connection.is_queued {
            connection.is_queued = true;
            ctx.net.ready.push_back(id);
        }
    }

    /// Forwards the client of a connection that the guest does not accept over the link.
    fn leave_to_link<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let mut connection = self.take_joined(index, ctx.net);
        if let Some(inner) = connection.inner.take() {
            ctx.host.abort(inner);
        }
        let id = self.vacant(ctx.net);
        if ctx.host.tcp_assign(id, &mut connection.outer).is_err() {
            return ctx.host.abort(connection.outer);
        }
        let client = AcceptedClient {
            published: connection.published,
            guest: connection.guest,
            accepted: AcceptedConnection {
                socket: connection.outer,
                peer: connection.client,
            },
        };
        self.accept_over_link(client, connection.grounds, RateCheck::Done, ctx);
    }

    fn abort_joined<H: Host<Socket = S>, T>(
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
        for socket in core::iter::once(connection.outer).chain(connection.inner) {
            close(ctx.host, socket);
        }
    }

    fn take_joined(&mut self, index: u32, net: &mut Net) -> JoinedConnection<S> {
        let mut connection = self.joined.connections.remove(index);
        net.joined_closed(connection.published.share_key());
        net.timers.disarm(&mut connection.timer);
        connection
    }

    fn joined_id(&self, index: u32, net: &Net) -> FlowId {
        net.flow(Kind::Joined, index, self.joined.connections.generation(index))
    }
}

/// Returns the reason of the end of a connection after a failure of the client's socket or the guest's.
fn reason(failure: Failure, of_guest: bool) -> CloseReason {
    match (failure, of_guest) {
        (Failure::Reset, true) => CloseReason::GuestReset,
        (failure, _) => CloseReason::of_failure(failure),
    }
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
}

impl<S> Default for JoinedTable<S> {
    fn default() -> Self {
        Self {
            connections: Slab::default(),
            waiting: VecDeque::new(),
            lost: Vec::new(),
        }
    }
}
