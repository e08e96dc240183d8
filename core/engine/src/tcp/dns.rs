//! Limits the connections of the guest to the DNS forwarder: their number, and their idle time.
//!
//! Each holds a connection to the host's resolver, which has a limit of its own for all its clients (RFC 7766 section
//! 6.2.3 permits to close idle connections at any time).

use core::time::Duration;

use super::Tcp;
use super::connection::{Connection, TcpState};
use crate::ctx::Ctx;
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

    /// Resets the longest idle of the connections to the DNS forwarder if there are [`MOST`] of them, and returns its
    /// slot.
    pub(super) fn make_room_for_dns<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Option<u32> {
        if self.dns.len() < MOST {
            return None;
        }
        let idle_since = |id: &&FlowId| {
            let queries = self.connections.at(id.index).up.queries;
            queries.map(|queries| queries.last_message())
        };
        let idlest = *self.dns.iter().min_by_key(idle_since)?;
        ctx.net.counters.dns_streams_closed += 1;
        self.close(idlest, ctx);
        Some(idlest.index)
    }
}
