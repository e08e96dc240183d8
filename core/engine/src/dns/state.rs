//! The pending DNS queries of a state.

use super::clients;
use super::{Forwarder, LIMIT, PendingQuery};
use crate::ctx::Net;
use crate::slab::Slab;
use crate::state::{Adoption, Reader, SocketDescription, SocketKind, Sockets, StateError, Writer, check};
use crate::timer::Timer;
use crate::{FlowId, Kind};

/// Maximum number of resolvers that a query was sent to before.
const MOST_BEFORE: usize = 64;

impl<S> Forwarder<S> {
    /// Appends the pending queries, and adds the host sockets to `sockets`.
    pub(crate) fn save<'a>(&'a self, to: &mut Writer<'_>, sockets: &mut Sockets<'a, S>) {
        let Self {
            resolvers,
            pending,
            by_question: _,
            clients: _,
            secret: _,
            buffer: _,
        } = self;
        resolvers.save(to);
        let mut places = Vec::new();
        for (_, _, query) in pending.iter() {
            let socket = query.socket.as_ref();
            places.push(socket.map(|socket| sockets.add(socket, query.description())));
        }
        let mut places = places.into_iter();
        pending.save(to, |to, _, _, query| {
            to.put(&places.next().flatten());
            query.save_record(to);
        });
    }

    /// Reads what [`Self::save`] has written into this forwarder, which has no pending queries. A query whose resolver is not in
    /// the configuration any more is dropped, and the guest sends it again.
    pub(crate) fn load(
        &mut self,
        net: &mut Net,
        from: &mut Reader<'_>,
        adoption: &mut Adoption<'_, S>,
    ) -> Result<(), StateError> {
        self.resolvers.load(from)?;
        self.pending = Slab::load(from, net.most_flows().min(LIMIT), |from, index, generation| {
            let place: Option<u32> = from.get()?;
            let query = PendingQuery::load_record(from)?;
            query.check()?;
            check(query.flow == net.flow(Kind::Dns, index, generation))?;
            let Some(place) = place else {
                return Ok(Some(query.with_sockets(None)));
            };
            let is_known = |resolver| net.config.resolvers.contains(&resolver);
            let description = query.description();
            let permitted = query.resolver.is_some_and(is_known).then_some(&description);
            let socket = adoption.take_only(place, permitted)?;
            Ok(socket.map(|socket| query.with_sockets(Some(socket))))
        })?;
        let slots: Vec<u32> = self.pending.iter().map(|(index, ..)| index).collect();
        for index in slots {
            net.opened();
            let query = self.pending.at(index);
            self.clients += query.clients.len();
            let hash = |&index: &u32| self.secret.hash(&self.pending.at(index).query);
            self.by_question.insert_unique(hash(&index), index, hash);
        }
        check(self.clients <= LIMIT)
    }

    /// Returns the timer of a flow.
    pub(crate) fn timer_of(&mut self, flow: FlowId) -> Option<&mut Timer> {
        let query = self.pending.get_mut(flow.index, flow.generation)?;
        Some(&mut query.timer)
    }
}

impl<S> PendingQuery<S> {
    fn description(&self) -> SocketDescription {
        SocketDescription::new(self.flow, SocketKind::Dns).connected_to(self.resolver)
    }

    fn check(&self) -> Result<(), StateError> {
        check(self.before.len() <= MOST_BEFORE && self.clients.len() <= clients::LIMIT)
    }
}
