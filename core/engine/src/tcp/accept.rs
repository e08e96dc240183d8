//! Accepts clients of published ports: a client becomes a SYN to the guest.

use core::net::SocketAddr;

use rand_chacha::rand_core::RngCore;

use super::connection::{Connection, ConnectionKey, TcpState};
use super::{Sending, Tcp, decided, events, joined};
use crate::config::Published;
use crate::ctx::{Capacity, Ctx};
use crate::flow_events::{Grounds, RefusalReason};
use crate::flow_rate::{Admission, FlowOpener};
use crate::host::AcceptedConnection;
use crate::{Failure, FlowId, Host, Transmit};

/// Maximum number of connections that are accepted from one listener in one turn.
const ACCEPTS: usize = 64;
/// Number of clients greater than that of any listener's queue, whose backlog is at most 4,096.
const BACKLOG: usize = 4_097;
/// Maximum number of random ports that are tried for a client that is shown to the guest with the gateway's address.
const PORT_TRIES: usize = 16;
/// Lowest port that is chosen for a client that is shown to the guest with the gateway's address; it is above the ports
/// of services (RFC 6056 section 3.2).
const FIRST_PORT: u16 = 1024;

impl<S> Tcp<S> {
    /// Accepts clients from the listener of a published port, up to a limit for each turn.
    pub fn handle_listener<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        listener: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let backlog = self.take_clients(listener, ACCEPTS, ctx);
        // Another event may have added the listener to the list of ready flows already.
        if backlog == Backlog::MayHaveMore && !ctx.net.ready.contains(&listener) {
            ctx.net.ready.push_back(listener);
        }
    }

    /// Accepts all clients in the queue of a port that is unpublished, because the kernel would reset them when the
    /// listener is closed.
    pub fn drain_listener<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        listener: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        self.take_clients(listener, BACKLOG, ctx);
    }

    /// Accepts up to `most` clients from a listener.
    fn take_clients<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        listener: FlowId,
        most: usize,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Backlog {
        for _ in 0..most {
            let id = match ctx.net.decisions {
                None => self.vacant(ctx.net),
                Some(_) => decided::undecided(ctx.net),
            };
            match ctx.host.tcp_accept(listener.index, id) {
                Ok(accepted) => {
                    let published = ctx.net.config.published[listener.index as usize];
                    let Some(guest) = published.server(&ctx.net.config.plan) else {
                        ctx.host.abort(accepted.socket);
                        continue;
                    };
                    let client = AcceptedClient {
                        published,
                        guest,
                        accepted,
                    };
                    match (published.is_in_guest(), &ctx.net.decisions) {
                        (true, _) => self.accept_from_guest(client, ctx),
                        (false, None) => self.accept(client, Grounds::NONE, ctx),
                        (false, Some(_)) => self.judge_client(client, ctx),
                    }
                }
                Err(Failure::Exhausted) => {
                    // An event reports the listener again when there may be a free descriptor.
                    ctx.net.counters.host_exhausted += 1;
                    return Backlog::Taken;
                }
                // No other client waits, or the port is not published any more.
                Err(Failure::WouldBlock | Failure::Invalid) => return Backlog::Taken,
                // The client has disconnected already (accept(2), "Error handling"), so the next one is accepted.
                Err(_gone) => {}
            }
        }
        Backlog::MayHaveMore
    }

    /// Opens the connection of a client to the guest, if the limits on flows permit it. `grounds` are those on which it is
    /// permitted.
    pub(super) fn accept<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        client: AcceptedClient<S>,
        grounds: Grounds,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        // No flow is evicted for a connection that does not use the link.
        let port = client.published.share_key();
        let has_room = ctx.net.has_room_to_join() && ctx.net.full_share(port).is_none();
        let inside = match has_room {
            true => joined::inside(&client, ctx.net),
            false => None,
        };
        let Some(inside) = inside else {
            return self.accept_over_link(client, grounds, RateCheck::Due, ctx);
        };
        let admission = ctx.net.admit(Capacity::Vacant, FlowOpener::Client, ctx.now);
        if admission == Admission::Refused {
            let refused = events::client_ends(client.guest, client.accepted.peer);
            ctx.net.report_refused(refused, RefusalReason::Limit, ctx.now);
            return ctx.host.abort(client.accepted.socket);
        }
        if let Some(client) = self.join(client, inside, grounds, ctx) {
            self.accept_over_link(client, grounds, RateCheck::Done, ctx);
        }
    }

    /// Opens the connection of a client over the link to the guest, if the limits on flows permit it. `rate_check` is the
    /// state of its check against `--max-flow-rate`.
    pub(super) fn accept_over_link<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        client: AcceptedClient<S>,
        grounds: Grounds,
        rate_check: RateCheck,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let AcceptedClient {
            published,
            guest,
            accepted,
        } = client;
        let refused = events::client_ends(guest, accepted.peer);
        let Some(room) = self.room_for_client(published.share_key(), ctx) else {
            ctx.net.report_refused(refused, RefusalReason::Limit, ctx.now);
            return ctx.host.abort(accepted.socket);
        };
        let capacity = Capacity::new(room != ClientRoom::Vacant);
        let admission = match rate_check {
            RateCheck::Done => Admission::Admitted,
            RateCheck::Due => ctx.net.admit(capacity, FlowOpener::Client, ctx.now),
        };
        if admission == Admission::Refused {
            ctx.net.report_refused(refused, RefusalReason::Limit, ctx.now);
            return ctx.host.abort(accepted.socket);
        }
        let victim = match room {
            ClientRoom::HalfClosed(victim) => Some(victim),
            ClientRoom::Vacant | ClientRoom::TimeWait(_) | ClientRoom::Datagrams => None,
        };
        let Some(key) = self.appear(guest, accepted.peer, ctx) else {
            ctx.net.report_refused(refused, RefusalReason::Limit, ctx.now);
            return ctx.host.abort(accepted.socket);
        };
        let reused = self.find(&key);
        let sending = self.send_reset_to_victim(victim, ctx);
        if sending == Sending::LinkFull {
            // The key of a connection in TIME-WAIT still belongs to that connection.
            if reused.is_none() {
                ctx.net.release(&key.into());
            }
            ctx.net.report_refused(refused, RefusalReason::Limit, ctx.now);
            return ctx.host.abort(accepted.socket);
        }
        let iss = self.first_seq(&key, ctx.now);
        let mut connection = Connection::new(key, TcpState::SynSent, iss, ctx.now);
        connection.socket = Some(accepted.socket);
        connection.listener = Some(published.share_key());
        connection.pending.handshake = true;
        ctx.net.counters.tcp_accepted += 1;
        let index = self.add(connection, (None, grounds), ctx);
        if let Some(old) = reused {
            self.replace(old, ctx);
        }
        // The client's connection has its slot, so these slots are freed for later connections.
        match room {
            ClientRoom::Vacant => {}
            ClientRoom::TimeWait(old) => self.end_time_wait(old, ctx),
            ClientRoom::Datagrams => {
                ctx.net.reclaim();
            }
            ClientRoom::HalfClosed(_) => self.end_victim(victim, ctx),
        }
        self.flush(index, &[], ctx);
    }

    /// Finds room for a client under `--max-flows`; `None` if there is none. Nothing is evicted yet.
    pub(super) fn room_for_client<H, T>(&mut self, port: u32, ctx: &mut Ctx<'_, H, T>) -> Option<ClientRoom> {
        if let Some(share) = ctx.net.full_share(port) {
            if let Some(old) = self.time_wait_of(share) {
                return Some(ClientRoom::TimeWait(old));
            }
            let victim = self.idlest_half_closed(Some(share), ctx);
            ctx.net.counters.tcp_share_refused += u64::from(victim.is_none());
            return victim.map(ClientRoom::HalfClosed);
        }
        if !ctx.net.is_full() {
            return Some(ClientRoom::Vacant);
        }
        if let Some(&oldest) = self.waiting.front() {
            return Some(ClientRoom::TimeWait(oldest));
        }
        if ctx.net.can_reclaim() {
            return Some(ClientRoom::Datagrams);
        }
        let victim = self.idlest_half_closed(None, ctx);
        if victim.is_none() {
            self.probe_some(ctx);
            ctx.net.counters.flows_refused += 1;
        }
        victim.map(ClientRoom::HalfClosed)
    }

    /// Returns the addresses by which a client appears to the guest: as itself, or as another address with a fresh port.
    /// The key is claimed; only a connection in TIME_WAIT may have it already.
    fn appear<H, T>(
        &self,
        guest: SocketAddr,
        peer: SocketAddr,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Option<ConnectionKey> {
        let shown = ctx.net.policy.visible_client_of(guest.ip(), peer.ip());
        if shown == peer.ip() {
            let key = ConnectionKey { guest, remote: peer };
            // A key that is in use belongs to the same client, which has used its port with another address of the
            // host.
            let free = match self.find(&key) {
                Some(old) => matches!(self.connections.at(old).state, TcpState::TimeWait { .. }),
                None => ctx.net.claim(&key.into()).is_ok(),
            };
            if free {
                return Some(key);
            }
        }
        // A client's own address stands for one client only.
        let shown = match shown == peer.ip() {
            true => ctx.net.config.plan.gateway(guest.ip())?,
            false => shown,
        };
        (0..PORT_TRIES).find_map(|_| {
            let spread = u32::from(u16::MAX - FIRST_PORT);
            let port = FIRST_PORT + u16::try_from(ctx.net.random.next_u32() % spread).expect("below spread");
            let key = ConnectionKey {
                guest,
                remote: SocketAddr::new(shown, port),
            };
            let free = self.find(&key).is_none() && ctx.net.claim(&key.into()).is_ok();
            free.then_some(key)
        })
    }
}

/// State of a listener's queue after a turn has accepted clients from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backlog {
    /// All clients were accepted, or there is no free descriptor for the others.
    Taken,
    /// The listener's queue may contain more clients.
    MayHaveMore,
}

/// State of the check of an accepted client against `--max-flow-rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RateCheck {
    /// The client has not been counted against the rate.
    Due,
    /// The client was counted, and is admitted.
    Done,
}

/// A client that was accepted from the listener of a published port.
#[derive(Debug)]
pub(super) struct AcceptedClient<S> {
    pub(super) published: Published,
    /// Address and port of the guest to which the client is forwarded, or those to which a program of the guest has connected.
    pub(super) guest: SocketAddr,
    pub(super) accepted: AcceptedConnection<S>,
}

/// The slot under `--max-flows` that a new client of a published port uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientRoom {
    /// A vacant slot.
    Vacant,
    /// The slot of a connection in TIME-WAIT.
    TimeWait(FlowId),
    /// The slot of the idlest UDP endpoint or echo id.
    Datagrams,
    /// The slot of a half-closed connection, which is reset.
    HalfClosed(FlowId),
}
