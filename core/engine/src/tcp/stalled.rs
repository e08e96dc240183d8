//! Detects stalled connections, whose guest does not acknowledge the data that the host has received for it, and limits
//! the host memory that they use.
//!
//! Data stays in the host socket's receive queue until the guest acknowledges it, and the guest's window may stay
//! closed for any time (RFC 9293 section 3.8.6.1). The kernel increases the receive buffer of a connection that is read
//! quickly to 6 MiB and more (`tcp_rmem`). So a guest that reads quickly and then stops would hold that much of the
//! host's memory with each connection. The receive queues of all stalled connections together have a budget; if it is
//! exceeded, the connection with the largest queue is reset.

use core::time::Duration;

use super::Tcp;
use super::connection::{Connection, TcpState};
use crate::ctx::{Ctx, Net};
use crate::flow_events::CloseReason;
use crate::{FlowId, Host, Instant, Transmit};
use crate::state::record;

/// Time within which a guest has to acknowledge as many bytes as its receive queue contains. The timers for data in
/// flight and for closed windows handle a connection at least once a minute, so that a stalled connection is detected
/// after at most 90 s.
const PERIOD: Duration = Duration::from_secs(30);
/// Maximum memory in bytes in the receive queues of one worker's stalled connections: 42 queues of the largest size
/// that Linux allocates by default (`tcp_rmem`, 6 MiB), or 2,048 of the initial size. A guest's paused downloads use
/// much less.
const BUDGET: u64 = 256 << 20;
/// Number of connections, those that have stalled earliest, among which the one with the largest receive queue is
/// chosen.
const COMPARED: usize = 64;

/// Measurement of a connection's receive queue, by which a stalled connection is detected.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveQueueWatch {
    /// Time of the last check; [`EMPTY`] while the queue is empty.
    since: Instant,
    /// Bytes sent to the guest until the last check, modulo 2^32. A connection that sends 4 GiB in a period may
    /// therefore count as stalled until the next check, which has an effect only if the budget is exceeded.
    sent: u32,
    /// Bytes of this queue that count against the budget.
    pub(super) counted: u32,
}

record! { ReceiveQueueWatch { since, sent, counted } }

/// A time later than any other, so that an empty queue is never checked.
const EMPTY: Instant = Instant(u64::MAX);

impl Default for ReceiveQueueWatch {
    fn default() -> Self {
        Self {
            since: EMPTY,
            sent: 0,
            counted: 0,
        }
    }
}

impl<S> Connection<S> {
    /// Returns true if the host socket's receive queue may have data that the guest has not acknowledged.
    pub(super) fn holds_data(&self) -> bool {
        self.state == TcpState::Open && (self.pending.readable || self.down.max.after(self.down.una))
    }

    /// Sets the number of bytes of this connection's receive queue that count against the budget.
    pub(super) fn count_held(&mut self, bytes: u32, net: &mut Net) {
        net.stalled_bytes -= u64::from(self.held.counted);
        net.stalled_bytes += u64::from(bytes);
        self.held.counted = bytes;
    }
}

impl<S> Tcp<S> {
    /// Checks a connection's receive queue once in a [`PERIOD`], and counts it against the budget if the guest has
    /// acknowledged fewer bytes than it contains.
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
            self.connections
                .at_mut(largest.index)
                .ends_by(CloseReason::Evicted);
            self.close(largest, ctx);
        }
    }

    fn list_stalled(&mut self, id: FlowId) {
        // Entries of connections that have ended are removed.
        if self.stalled.len() > 2 * self.connections.len() + 64 {
            let connections = &self.connections;
            self.stalled
                .retain(|old| connections.get(old.index, old.generation).is_some());
        }
        self.stalled.push_back(id);
    }

    /// Returns the connection with the largest receive queue among the first [`COMPARED`] that have stalled.
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
