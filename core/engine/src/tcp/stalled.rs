//! Connections whose guest does not acknowledge the data that the host has received for it.
//!
//! Data stays in the host socket's receive queue until the guest acknowledges it, and a window may stay closed for any
//! time (RFC 9293 section 3.8.6.1). The kernel grows the receive buffer of a connection that is read quickly, to 6 MiB
//! and more (`tcp_rmem`), so that a guest that reads quickly and then stops holds that much of the host's memory with
//! each connection. The receive queues of such connections have a budget in all; beyond it, the largest is reset.

use core::time::Duration;

use super::Tcp;
use super::connection::{Connection, TcpState};
use crate::ctx::{Ctx, Net};
use crate::{FlowId, Host, Instant, Transmit};

/// The time in which a guest has to acknowledge as much as its receive queue holds. Timers of data in flight and of closed
/// windows process a connection at least once a minute, so that a stalled one is detected after 90 s at most.
const PERIOD: Duration = Duration::from_secs(30);
/// Memory in the receive queues of one worker's stalled connections: 42 of the largest that Linux makes by default
/// (`tcp_rmem`, 6 MiB), 2,048 of those that a connection begins with. Paused downloads of a guest are well within it.
const BUDGET: u64 = 256 << 20;
/// The number of connections, of those stalled for longest, that are compared for the largest one.
const COMPARED: usize = 64;

/// A connection's receive queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// The begin of the period; [`EMPTY`] while the queue is empty.
    since: Instant,
    /// The bytes sent to the guest until then, modulo 2^32: a connection that sends 4 GiB in a period is not stalled,
    /// but may count as stalled until the next check, which only matters beyond the budget.
    sent: u32,
    /// Memory that counts against the budget.
    counted: u32,
}

/// Later than any time, so that an empty queue is never checked.
const EMPTY: Instant = Instant(u64::MAX);

impl Default for Held {
    fn default() -> Self {
        Self {
            since: EMPTY,
            sent: 0,
            counted: 0,
        }
    }
}

impl<S> Connection<S> {
    /// Returns true if the receive queue may have data that the guest has not acknowledged.
    pub(super) fn holds_data(&self) -> bool {
        self.state == TcpState::Open && (self.pending.readable || self.down.max.after(self.down.una))
    }

    /// Sets the part of the budget that this connection holds.
    pub(super) fn count_held(&mut self, bytes: u32, net: &mut Net) {
        net.stalled_bytes -= u64::from(self.held.counted);
        net.stalled_bytes += u64::from(bytes);
        self.held.counted = bytes;
    }
}

impl<S> Tcp<S> {
    /// Checks the receive queue once a [`PERIOD`], and counts it if the guest has acknowledged less than it holds.
    pub(super) fn watch_queue<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let connection = self.connections.at_mut(id.index);
        if !connection.holds_data() {
            connection.held.since = EMPTY;
            connection.count_held(0, ctx.net);
            return;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "differences are taken modulo 2^32"
        )]
        let sent = connection.meter.sent_down() as u32;
        if connection.held.since == EMPTY {
            (connection.held.since, connection.held.sent) = (ctx.now, sent);
        }
        if ctx.now.since(connection.held.since) < PERIOD {
            return;
        }
        let taken = sent.wrapping_sub(connection.held.sent);
        (connection.held.since, connection.held.sent) = (ctx.now, sent);
        let socket = connection.socket.as_mut();
        let queued = socket.map_or(0, |socket| ctx.host.tcp_receive_memory(socket));
        let is_stalled = taken < queued;
        connection.count_held(if is_stalled { queued } else { 0 }, ctx.net);
        if is_stalled && !connection.pending.listed_as_stalled {
            connection.pending.listed_as_stalled = true;
            self.list_stalled(id);
        }
        while ctx.net.stalled_bytes > BUDGET
            && let Some(largest) = self.largest_stalled()
        {
            ctx.net.counters.tcp_stalled_evicted += 1;
            self.close(largest, ctx);
        }
    }

    fn list_stalled(&mut self, id: FlowId) {
        // The entries of connections that have ended are stale.
        if self.stalled.len() > 2 * self.connections.len() + 64 {
            let connections = &self.connections;
            self.stalled
                .retain(|old| connections.get(old.index, old.generation).is_some());
        }
        self.stalled.push_back(id);
    }

    /// Returns the connection with the largest queue among the first [`COMPARED`] of those that stalled earliest.
    fn largest_stalled(&mut self) -> Option<FlowId> {
        let mut largest = None;
        let mut at = 0;
        while at < COMPARED
            && let Some(&id) = self.stalled.get(at)
        {
            match self.connections.get_mut(id.index, id.generation) {
                Some(connection) if connection.held.counted > 0 => {
                    let counted = connection.held.counted;
                    if largest.is_none_or(|(most, _)| counted > most) {
                        largest = Some((counted, id));
                    }
                    at += 1;
                }
                resumed => {
                    if let Some(connection) = resumed {
                        connection.pending.listed_as_stalled = false;
                    }
                    self.stalled.remove(at);
                }
            }
        }
        largest.map(|(_, id)| id)
    }
}
