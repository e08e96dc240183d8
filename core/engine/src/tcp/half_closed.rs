//! Half-closed connections that give way to new ones.

use std::collections::BTreeMap;

use super::connection::Connection;
use crate::FlowId;

/// Half-closed connections in the order in which they were added: all of them, and those of each published port.
#[derive(Debug, Default)]
pub(super) struct HalfClosed {
    /// By published port, `None` for all, and place. A client's connection has two entries.
    order: BTreeMap<(Option<u32>, u64), FlowId>,
    /// Places by the connections' slots.
    places: BTreeMap<u32, u64>,
    next_place: u64,
}

impl HalfClosed {
    /// Adds a connection that is not among them, as the last one.
    pub(super) fn add<S>(&mut self, connection: &mut Connection<S>, id: FlowId) {
        let place = self.next_place;
        self.next_place += 1;
        connection.pending.yields = true;
        self.places.insert(id.index, place);
        for port in [None, connection.listener] {
            self.order.insert((port, place), id);
        }
    }

    /// Removes the connection in the slot `index`, if it is among them.
    pub(super) fn remove<S>(&mut self, connection: &mut Connection<S>, index: u32) {
        if !core::mem::take(&mut connection.pending.yields) {
            return;
        }
        if let Some(place) = self.places.remove(&index) {
            for port in [None, connection.listener] {
                self.order.remove(&(port, place));
            }
        }
    }

    /// Returns the first connection, of all or of a published port, whose place is `from` or later, and its place.
    pub(super) fn first(&self, port: Option<u32>, from: u64) -> Option<(u64, FlowId)> {
        let mut entries = self.order.range((port, from)..=(port, u64::MAX));
        entries.next().map(|(&(_, place), &id)| (place, id))
    }
}
