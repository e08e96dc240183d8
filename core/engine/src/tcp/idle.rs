//! Connections on which nothing happens: the guest is asked whether it still has them, and those that are half closed
//! or in TIME_WAIT give way to new ones.
//!
//! A probe is an old sequence number without data (RFC 9293 section 3.8.4). A guest that has the connection
//! acknowledges it, one that has forgotten it answers by a reset. So a guest that has closed its socket, and whose
//! kernel keeps FIN_WAIT_2 for a minute only (Linux `tcp_fin_timeout`), ends the connection here soon after; one whose
//! program has shut down its direction only, and waits for an answer, keeps it for as long as that takes, as with any
//! other TCP.

use core::time::Duration;

use pontoon_wire::frame::Flags;

use super::connection::{Connection, State};
use super::{Ended, Tcp};
use crate::ctx::Ctx;
use crate::siblings::ClientShare;
use crate::{Failure, FlowId, Host, Instant, Transmit};

/// RFC 9293 section 3.8.4: no less than two hours.
const KEEPALIVE: Duration = Duration::from_secs(2 * 60 * 60);
/// From one probe without an answer to the next: Linux `tcp_keepalive_intvl`.
const INTERVAL: Duration = Duration::from_secs(75);
/// Probes without an answer after which the guest is taken for gone: Linux `tcp_keepalive_probes`.
const PROBES: u8 = 9;
/// Silence after which a half-closed connection is probed: Linux `tcp_fin_timeout`, 60 s, and what its timers may be
/// late, 4.1 s.
const FIN_TIMEOUT: Duration = Duration::from_secs(65);
/// Silence after which any connection is probed when there is no room for a new one.
const SHORTAGE: Duration = Duration::from_secs(60);
/// The interval of such probes: the guest is near, and did not answer the first one.
const SHORT_INTERVAL: Duration = Duration::from_secs(5);
/// Silence after which a half-closed connection gives way to a new one.
const YIELDS: Duration = Duration::from_secs(5);
/// Connections looked at, for each flow that finds no room, for some to probe or one to end.
const LOOKS: u32 = 64;

impl<S> Connection<S> {
    /// Returns true if the guest's direction is closed, and delivered, and the peer's open.
    const fn is_half_closed(&self) -> bool {
        self.up.closed && !self.down.eof
    }

    /// The silence before the first probe, and before each other one.
    const fn probe_times(&self) -> (Duration, Duration) {
        if self.pending.shortage {
            (SHORTAGE, SHORT_INTERVAL)
        } else if self.up.fin.is_some() && !self.down.eof {
            (FIN_TIMEOUT, SHORT_INTERVAL)
        } else {
            (KEEPALIVE, INTERVAL)
        }
    }

    /// When [`Tcp::handle_idle`] has something to do, unless something happens before.
    pub(super) fn idle_deadline(&self) -> Instant {
        if self.is_half_closed() && !self.pending.yields {
            return self.heard + YIELDS;
        }
        let (first, every) = self.probe_times();
        self.heard + first + every * u32::from(self.down.recovery.unanswered)
    }

    /// Probes a guest that has been silent for too long.
    ///
    /// # Errors
    /// It has not answered [`PROBES`] of them.
    fn probe_guest<H, T: Transmit>(&mut self, id: FlowId, ctx: &mut Ctx<'_, H, T>) -> Result<(), Ended> {
        // The next probe is due an interval after this one, however late this one is: the deadlines count from `heard`.
        let (first, every) = self.probe_times();
        let silent = first + every * u32::from(self.down.recovery.unanswered);
        self.heard = self.heard.max(ctx.now - silent);
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
    /// The timer of a connection in which nothing is to be sent again.
    pub(super) fn handle_idle<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Ended> {
        let connection = self.connections.at_mut(id.index);
        if connection.down.recovery.unanswered == 0 && ctx.now.since(connection.heard) < SHORTAGE {
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

    /// The half-closed connection that has been silent for longest, of all or of the share `of`; one whose
    /// receive queue has data, which would have its peer reset, only where the first few all have.
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
            if connection.state != State::Open {
                self.half_closed.remove(connection, old.index);
            } else if !connection.is_half_closed() || ctx.now.since(connection.heard) < YIELDS {
                self.half_closed.remove(connection, old.index);
                connection.arm(old, ctx);
            } else if connection.holds_data() {
                with_data = with_data.or(Some(old));
                looks += 1;
            } else {
                return Some(old);
            }
        }
        with_data
    }

    /// Removes a half-closed connection, whose guest has been sent a reset, for another flow.
    ///
    /// The host's side is closed, not aborted: its kernel sends what the guest has sent, and keeps FIN_WAIT_2 for as
    /// long as it does for its own programs. Where the receive queue has data, though, the kernel resets the peer (RFC
    /// 2525 section 2.17, Linux `tcp_close`), which is why [`Self::idlest_half_closed`] prefers connections without
    /// any.
    pub(super) fn end_half_closed<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        ctx.net.counters.tcp_half_closed_evicted += 1;
        // Removal closes the socket.
        self.remove(id.index, ctx);
    }

    /// Ends the oldest TIME_WAIT; false without any.
    pub(super) fn forget_oldest<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        ctx: &mut Ctx<'_, H, T>,
    ) -> bool {
        let oldest = self.waiting.pop_front();
        if let Some(old) = oldest {
            // It still exists: a connection that leaves TIME_WAIT early takes stale entries in front with it, see `replace`.
            self.remove(old.index, ctx);
        }
        oldest.is_some()
    }

    /// Ends a TIME_WAIT of a client that counts against `share`, the oldest of those that are looked at. Each call looks
    /// at a few; the next one goes on where it has ended. False: none of them is such a client's.
    pub(super) fn forget_oldest_of<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        share: ClientShare,
        ctx: &mut Ctx<'_, H, T>,
    ) -> bool {
        let looks = self.waiting.len().min(LOOKS as usize);
        for _ in 0..looks {
            if self.next_waiting >= self.waiting.len() {
                self.next_waiting = 0;
            }
            let old = self.waiting[self.next_waiting];
            let connection = self.connections.get(old.index, old.generation);
            let is_one = connection.is_some_and(|connection| {
                share.includes(connection.listener) && matches!(connection.state, State::TimeWait { .. })
            });
            if is_one {
                self.waiting.remove(self.next_waiting);
                self.remove(old.index, ctx);
                return true;
            }
            self.next_waiting += 1;
        }
        false
    }

    /// There is no room for a new connection: probes some of those whose guest has been silent, so that what a guest
    /// has forgotten, or a machine that is gone, does not hold a place for two hours. Each call looks at the next few.
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
            if connection.state == State::Open && ctx.now.since(connection.heard) >= SHORTAGE {
                connection.pending.shortage = true;
                connection.arm(id, ctx);
            }
        }
    }
}
