//! Idle connections: the engine probes the guest for them, and evicts those that are half closed or in TIME-WAIT for
//! new ones.
//!
//! A probe is a segment with an old sequence number and no data (RFC 9293 section 3.8.4). A guest that has the
//! connection acknowledges it, and one that does not have it answers by a reset. So a connection whose guest has closed
//! its socket, and whose kernel keeps FIN-WAIT-2 only for a minute (Linux `tcp_fin_timeout`), ends here soon after. A
//! connection whose guest has only shut down its direction, and waits for a response, stays open.

use core::time::Duration;

use pontoon_wire::frame::Flags;

use super::connection::{Connection, TcpState};
use super::{Ended, Tcp};
use crate::ctx::{Ctx, Eviction};
use crate::flow_events::CloseReason;
use crate::siblings::ClientShare;
use crate::{Failure, FlowId, Host, Instant, Kind, Transmit};

/// Idle time before the first keepalive probe (RFC 9293 section 3.8.4: at least two hours).
const KEEPALIVE: Duration = Duration::from_secs(2 * 60 * 60);
/// Interval between unanswered keepalive probes (Linux `tcp_keepalive_intvl`).
const INTERVAL: Duration = Duration::from_secs(75);
/// Number of unanswered probes after which the connection is reset (Linux `tcp_keepalive_probes`).
pub(super) const PROBES: u8 = 9;
/// Idle time before a half-closed connection is probed: Linux `tcp_fin_timeout`, 60 s, and the inaccuracy of Linux's
/// timers, 4.1 s.
pub(super) const FIN_TIMEOUT: Duration = Duration::from_secs(65);
/// Idle time before any connection is probed while there is no room for a new one.
const SHORTAGE: Duration = Duration::from_secs(60);
/// Interval between unanswered probes while there is no room for a new connection.
pub(super) const SHORT_INTERVAL: Duration = Duration::from_secs(5);
/// Idle time after which a half-closed connection may be evicted for a new one.
pub(super) const YIELDS: Duration = Duration::from_secs(5);
/// Maximum number of connections that are examined, to probe or to evict, for each new flow that finds no room.
pub(super) const LOOKS: u32 = 64;

impl<S> Connection<S> {
    /// Returns true if the guest's FIN was delivered to the remote host, whose own direction is open.
    const fn is_half_closed(&self) -> bool {
        self.up.closed && !self.down.eof
    }

    /// Returns the idle time before the first probe, and the interval of further probes.
    const fn probe_times(&self) -> (Duration, Duration) {
        if self.pending.shortage {
            (SHORTAGE, SHORT_INTERVAL)
        } else if self.up.fin.is_some() && !self.down.eof {
            (FIN_TIMEOUT, SHORT_INTERVAL)
        } else {
            (KEEPALIVE, INTERVAL)
        }
    }

    /// Returns the time at which [`Tcp::handle_idle`] has to be called if the connection stays idle.
    pub(super) fn idle_deadline(&self) -> Instant {
        if self.is_half_closed() && !self.pending.yields {
            return self.last_received + YIELDS;
        }
        let (first, every) = self.probe_times();
        self.last_received + first + every * u32::from(self.down.recovery.unanswered)
    }

    /// Sends a keepalive probe to the guest of an idle connection, if it is due.
    ///
    /// # Errors
    /// The guest has not answered [`PROBES`] probes.
    fn probe_guest<H, T: Transmit>(&mut self, id: FlowId, ctx: &mut Ctx<'_, H, T>) -> Result<(), Ended> {
        // The next probe is due one interval after this one, even if this one is late, because deadlines count from
        // `last_received`.
        let (first, every) = self.probe_times();
        let silent = first + every * u32::from(self.down.recovery.unanswered);
        self.last_received = self.last_received.max(ctx.now - silent);
        let unanswered = &mut self.down.recovery.unanswered;
        if *unanswered >= PROBES {
            ctx.net.counters.tcp_guest_silent += 1;
            return Err(Ended::Failed(Failure::TimedOut));
        }
        *unanswered += 1;
        ctx.net.counters.tcp_keepalives += 1;
        self.send_bare(id, self.down.una - 1, Flags::ACK, None, ctx);
        Ok(())
    }
}

impl<S> Tcp<S> {
    /// Handles the timer of a connection without data in flight.
    pub(super) fn handle_idle<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Ended> {
        let connection = self.connections.at_mut(id.index);
        if connection.down.recovery.unanswered == 0 && ctx.now.since(connection.last_received) < SHORTAGE {
            connection.pending.shortage = false;
        }
        if ctx.now < connection.idle_deadline() {
            return Ok(());
        }
        if connection.is_half_closed() && !connection.pending.yields {
            self.half_closed.add(connection, id);
            return Ok(());
        }
        connection.probe_guest(id, ctx)
    }

    /// Returns the half-closed connection that has been idle for longest, of all connections or of the share `of`.
    /// Connections whose receive queue contains data, so that closing would reset the peer, are returned only if there
    /// is no other among those examined.
    pub(super) fn idlest_half_closed<H, T>(
        &mut self,
        of: Option<ClientShare>,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Option<FlowId> {
        let (mut from, mut looks) = (0, 0);
        let mut with_data = None;
        while looks < LOOKS
            && let Some((place, old)) = self.half_closed.first(of, from)
        {
            from = place + 1;
            let connection = self.connections.at_mut(old.index);
            if connection.state != TcpState::Open {
                self.half_closed.remove(connection, old.index);
            } else if !connection.is_half_closed() || ctx.now.since(connection.last_received) < YIELDS {
                self.half_closed.remove(connection, old.index);
                connection.arm(old, ctx);
            } else if connection.holds_data() {
                with_data = with_data.or(Some(old));
                looks += 1;
            } else {
                return Some(old);
            }
        }
        self.idlest_half_closed_joined(of, ctx).or(with_data)
    }

    /// Removes a half-closed connection in favour of a new flow. The caller has sent a reset to its guest.
    ///
    /// The host socket is closed, not aborted: its kernel sends the guest's remaining data, and keeps FIN-WAIT-2 for
    /// its usual time. If the receive queue contains data, the kernel resets the peer (RFC 2525 section 2.17, Linux
    /// `tcp_close`), so [`Self::idlest_half_closed`] prefers connections without data.
    pub(super) fn end_half_closed<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        ctx.net.counters.tcp_half_closed_evicted += 1;
        if id.kind == Kind::Joined {
            return self.abort_joined(id.index, CloseReason::Evicted, ctx);
        }
        self.connections.at_mut(id.index).ends_by(CloseReason::Evicted);
        // Removal closes the socket.
        self.remove(id.index, ctx);
    }

    /// Removes the oldest connection in TIME-WAIT in favour of a new flow.
    pub(super) fn evict_time_wait<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Eviction {
        let Some(oldest) = self.waiting.pop_front() else {
            return Eviction::NoneLeft;
        };
        // The connection still exists, because `replace` removes entries in front when a connection leaves TIME-WAIT
        // early.
        self.remove(oldest.index, ctx);
        Eviction::Evicted
    }

    /// Removes a connection in TIME-WAIT in favour of a new flow, unless it has left TIME-WAIT already.
    pub(super) fn end_time_wait<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        old: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        if let Some(place) = self.waiting.iter().position(|id| *id == old) {
            self.waiting.remove(place);
        }
        if self.connections.get(old.index, old.generation).is_some() {
            self.remove(old.index, ctx);
        }
    }

    /// Returns a connection in TIME-WAIT of a client that counts against `share`: the oldest of those that are
    /// examined. Each call examines a limited number of connections, and the next call continues after them.
    pub(super) fn time_wait_of(&mut self, share: ClientShare) -> Option<FlowId> {
        let looks = self.waiting.len().min(LOOKS as usize);
        for _ in 0..looks {
            if self.next_waiting >= self.waiting.len() {
                self.next_waiting = 0;
            }
            let old = self.waiting[self.next_waiting];
            let connection = self.connections.get(old.index, old.generation);
            let is_one = connection.is_some_and(|connection| {
                share.includes(connection.listener) && matches!(connection.state, TcpState::TimeWait { .. })
            });
            if is_one {
                return Some(old);
            }
            self.next_waiting += 1;
        }
        None
    }

    /// Probes the guest for some idle connections, because there is no room for a new one: connections that the guest
    /// does not have any more would otherwise hold a slot for two hours. Each call examines a limited number of
    /// connections, and the next call continues behind them.
    pub(super) fn probe_some<H, T>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        let slots = self.connections.slots();
        for _ in 0..LOOKS.min(slots) {
            let index = self.next_look % slots;
            self.next_look = index + 1;
            if !self.connections.contains(index) {
                continue;
            }
            let id = self.id(index, ctx.net);
            let connection = self.connections.at_mut(index);
            if connection.state == TcpState::Open && ctx.now.since(connection.last_received) >= SHORTAGE {
                connection.pending.shortage = true;
                connection.arm(id, ctx);
            }
        }
    }
}
