//! Half-closed connections that give way to new ones.

use std::collections::BTreeMap;

use super::connection::Connection;
use crate::FlowId;
use crate::siblings::ClientShare;

/// Half-closed connections in the order in which they were added: all of them, and those of each share of clients.
#[derive(Debug, Default)]
pub(super) struct HalfClosed {
    /// By share, `None` for all, and place. A client's connection has three entries.
    order: BTreeMap<(Option<ClientShare>, u64), FlowId>,
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
        for share in shares(connection) {
            self.order.insert((share, place), id);
        }
    }

    /// Removes the connection in the slot `index`, if it is among them.
    pub(super) fn remove<S>(&mut self, connection: &mut Connection<S>, index: u32) {
        if !core::mem::take(&mut connection.pending.yields) {
            return;
        }
        if let Some(place) = self.places.remove(&index) {
            for share in shares(connection) {
                self.order.remove(&(share, place));
            }
        }
    }

    /// Returns the first connection, of all or of a share, whose place is `from` or later, and its place.
    pub(super) fn first(&self, share: Option<ClientShare>, from: u64) -> Option<(u64, FlowId)> {
        let mut entries = self.order.range((share, from)..=(share, u64::MAX));
        entries.next().map(|(&(_, place), &id)| (place, id))
    }
}

/// The orders that a connection is in.
fn shares<S>(connection: &Connection<S>) -> impl Iterator<Item = Option<ClientShare>> + use<S> {
    let of_client = |port| [ClientShare::AllPorts, ClientShare::Port(port)].map(Some);
    let of_client = connection.listener.map(of_client);
    core::iter::once(None).chain(of_client.into_iter().flatten())
}
