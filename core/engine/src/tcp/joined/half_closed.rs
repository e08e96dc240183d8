//! Joined connections whose guest has ended its direction, as [`idle`](crate::tcp::idle) for those over the link.

use super::{JoinedTable, share};
use crate::ctx::Ctx;
use crate::host::KeepaliveTimes;
use crate::siblings::ClientShare;
use crate::state::record;
use crate::tcp::Tcp;
use crate::tcp::idle::{FIN_TIMEOUT, LOOKS, PROBES, SHORT_INTERVAL, YIELDS};
use crate::{FlowId, Instant};

/// Times of the probes of a guest whose direction has ended, as those over the link: the guest's kernel
/// answers by a reset if the program has closed its socket.
pub(super) const HALF_CLOSED_PROBES: KeepaliveTimes = KeepaliveTimes {
    idle: FIN_TIMEOUT,
    interval: SHORT_INTERVAL,
    probes: PROBES,
};

/// Connection whose guest has ended its direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct HalfClosed {
    pub(super) id: FlowId,
    /// Time since which the number of moved bytes is `moved`.
    pub(super) since: Instant,
    pub(super) moved: u64,
}

record! { HalfClosed { id, since, moved } }

impl<S> JoinedTable<S> {
    /// Adds a connection to those whose guest has ended its direction. Connections that have ended are removed from the list once
    /// they are the larger part of it.
    pub(super) fn add_half_closed(&mut self, entry: HalfClosed) {
        if self.half_closed.len() > 2 * self.connections.slots() as usize {
            let Self {
                connections,
                half_closed,
                ..
            } = self;
            half_closed.retain(|entry| connections.get(entry.id.index, entry.id.generation).is_some());
        }
        self.half_closed.push_back(entry);
    }
}

impl<S> Tcp<S> {
    /// Returns the connection whose guest has ended its direction first, of all or of the share `of`, and that has moved no data
    /// since. Each call examines a limited number of connections.
    pub(in crate::tcp) fn idlest_half_closed_joined<H, T>(
        &mut self,
        of: Option<ClientShare>,
        ctx: &Ctx<'_, H, T>,
    ) -> Option<FlowId> {
        let JoinedTable {
            connections,
            half_closed,
            ..
        } = &mut self.joined;
        for _ in 0..half_closed.len().min(LOOKS as usize) {
            let mut entry = half_closed.pop_front()?;
            let connection = connections.get(entry.id.index, entry.id.generation);
            let Some(connection) = connection.filter(|connection| connection.is_half_closed()) else {
                continue;
            };
            let moved = connection.forth.moved + connection.back.moved;
            if entry.moved != moved {
                (entry.moved, entry.since) = (moved, ctx.now);
            }
            let yields = ctx.now.since(entry.since) >= YIELDS
                && of.is_none_or(|of| of.includes(share(&connection.published)));
            let id = entry.id;
            half_closed.push_back(entry);
            if yields {
                return Some(id);
            }
        }
        None
    }
}
