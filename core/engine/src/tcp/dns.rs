//! Limits the connections of the guest to the DNS forwarder: their number, and their idle time.
//!
//! Each holds a connection to the host's resolver, which has a limit of its own for all its clients (RFC 7766 section
//! 6.2.3 permits to close idle connections at any time).

use core::time::Duration;

use super::connection::{Connection, TcpState};
use super::{Burst, Tcp};
use crate::ctx::Ctx;
use crate::flow_events::CloseReason;
use crate::{FlowId, Host, Instant, Transmit};

/// Maximum number of connections to the DNS forwarder. All of them belong to one worker.
const MOST: usize = 64;

/// Time without a whole query or a part of a response after which a connection is reset: several times as long as a
/// resolver needs for an answer (RFC 7766 section 6.2.3: the idle time is "of the order of a few seconds").
const IDLE: Duration = Duration::from_secs(10);

impl<S> Connection<S> {
    /// Returns the time at which the connection is reset unless a DNS message is forwarded before; `None` if it does
    /// not lead to the DNS forwarder.
    pub(super) fn dns_deadline(&self) -> Option<Instant> {
        let queries = self.up.queries.as_ref().filter(|_| self.state == TcpState::Open);
        queries.map(|queries| queries.last_message() + IDLE)
    }
}

impl<S> Tcp<S> {
    /// Adds a connection to the list of those to the DNS forwarder.
    pub(super) fn list_dns(&mut self, id: FlowId) {
        self.dns.push(id);
    }

    /// Removes a connection whose host socket is closed from the list of those to the DNS forwarder, if it is in it.
    pub(super) fn strike_dns(&mut self, index: u32) {
        self.dns.retain(|id| id.index != index);
    }

    /// Returns true if a new connection to the DNS forwarder replaces another one.
    pub(super) const fn dns_is_full(&self) -> bool {
        self.dns.len() >= MOST
    }

    /// Resets the longest idle of the connections to the DNS forwarder if there are [`MOST`] of them, and drops its data
    /// from the burst.
    pub(super) fn make_room_for_dns<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        burst: &mut Burst<'_>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        if !self.dns_is_full() {
            return;
        }
        let idle_since = |id: &&FlowId| {
            let queries = self.connections.at(id.index).up.queries;
            queries.map(|queries| queries.last_message())
        };
        let Some(idlest) = self.dns.iter().min_by_key(idle_since).copied() else {
            return;
        };
        ctx.net.counters.dns_streams_closed += 1;
        self.connections
            .at_mut(idlest.index)
            .ends_by(CloseReason::Evicted);
        self.close(idlest, ctx);
        burst.forget(idlest.index);
    }
}
