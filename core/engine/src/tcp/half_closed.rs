//! List of half-closed connections that may be evicted for new flows.

use std::collections::BTreeMap;

use super::connection::Connection;
use crate::FlowId;
use crate::siblings::ClientShare;
use crate::slab::Slab;
use crate::state::{Reader, StateError, Writer, check};

/// Half-closed connections in the order in which they were added: one list of all, and one for each share of
/// `--max-flows` that counts clients of published ports.
#[derive(Debug, Default)]
pub(super) struct HalfClosed {
    /// Connections by share (`None` for the list of all) and position. A client's connection has three entries, others
    /// have one.
    order: BTreeMap<(Option<ClientShare>, u64), FlowId>,
    /// Position of each connection, by the connection's slot.
    places: BTreeMap<u32, u64>,
    next_place: u64,
}

impl HalfClosed {
    /// Appends a connection that is not in the list.
    pub(super) fn add<S>(&mut self, connection: &mut Connection<S>, id: FlowId) {
        let place = self.next_place;
        self.next_place += 1;
        connection.pending.yields = true;
        self.places.insert(id.index, place);
        for share in shares(connection) {
            self.order.insert((share, place), id);
        }
    }

    /// Removes the connection in the slot `index` from the list, if it is in it.
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

    /// Returns position and flow id of the first connection at the position `from` or later, in the list of all or of a
    /// share.
    pub(super) fn first(&self, share: Option<ClientShare>, from: u64) -> Option<(u64, FlowId)> {
        let mut entries = self.order.range((share, from)..=(share, u64::MAX));
        entries.next().map(|(&(_, place), &id)| (place, id))
    }

    /// Appends the positions of the connections.
    pub(super) fn save(&self, to: &mut Writer<'_>) {
        let Self {
            order: _,
            places,
            next_place,
        } = self;
        to.put(next_place);
        to.count(places.len());
        for (index, place) in places {
            to.put(index);
            to.put(place);
        }
    }

    /// Reads the positions of `connections`.
    pub(super) fn load<S>(
        from: &mut Reader<'_>,
        connections: &Slab<Connection<S>>,
        id: impl Fn(u32) -> FlowId,
    ) -> Result<Self, StateError> {
        let mut list = Self {
            next_place: from.get()?,
            ..Self::default()
        };
        for (index, place) in from.list::<(u32, u64)>(connections.slots() as usize)? {
            if !connections.contains(index) {
                continue;
            }
            let connection = connections.at(index);
            let is_new = list.places.insert(index, place).is_none();
            check(is_new && connection.pending.yields && place < list.next_place)?;
            for share in shares(connection) {
                check(list.order.insert((share, place), id(index)).is_none())?;
            }
        }
        let yielding = connections.iter().filter(|(_, _, connection)| connection.pending.yields);
        check(yielding.count() == list.places.len())?;
        Ok(list)
    }
}

/// Returns the lists that contain a connection: that of all and, for a client's connection, those of two shares.
fn shares<S>(connection: &Connection<S>) -> impl Iterator<Item = Option<ClientShare>> + use<S> {
    let of_client = |port| [ClientShare::AllPorts, ClientShare::Port(port)].map(Some);
    let of_client = connection.listener.map(of_client);
    core::iter::once(None).chain(of_client.into_iter().flatten())
}
