//! The echo ids of a state.

use super::{Echo, Icmp};
use crate::ctx::Net;
use crate::state::{Adoption, Reader, SocketDescription, SocketKind, Sockets, StateError, Writer};
use crate::timer::Timer;
use crate::{FlowId, Kind};

impl<S> Icmp<S> {
    /// Appends the echo ids, and adds the host sockets to `sockets`.
    pub(crate) fn save<'a>(&'a self, net: &Net, to: &mut Writer<'_>, sockets: &mut Sockets<'a, S>) {
        let Self {
            echoes,
            requested,
            scratch: _,
        } = self;
        let mut places = Vec::new();
        for (index, echo) in echoes.iter() {
            let flow = net.flow(Kind::Icmp, index, echoes.generation(index));
            places.push(sockets.add(&echo.socket, SocketDescription::new(flow, SocketKind::Ping)));
        }
        let mut places = places.into_iter();
        echoes.save(to, |to, _, _, echo| {
            to.put(&places.next().expect("a place for each echo id"));
            echo.save_record(to);
        });
        requested.save(to);
    }

    /// Reads what [`Self::save`] has written into this table, which is empty.
    pub(crate) fn load(
        &mut self,
        net: &mut Net,
        from: &mut Reader<'_>,
        adoption: &mut Adoption<'_, S>,
    ) -> Result<(), StateError> {
        let limits = (net.most_flows(), 1);
        self.echoes.load(from, limits, |from, index, generation, _| {
            let place: u32 = from.get()?;
            let echo = Echo::load_record(from)?;
            let flow = net.flow(Kind::Icmp, index, generation);
            let description = SocketDescription::new(flow, SocketKind::Ping);
            let socket = adoption.take_only(place, Some(&description))?;
            Ok(socket.map(|socket| echo.with_sockets(socket)))
        })?;
        for _ in 0..self.echoes.len() {
            net.opened();
            net.became_evictable();
        }
        self.requested.load(from, net.decisions.is_some())
    }

    /// Returns the timer of a flow.
    pub(crate) fn timer_of(&mut self, flow: FlowId) -> Option<&mut Timer> {
        let echo = self.echoes.get_mut(flow.index, flow.generation)?;
        Some(&mut echo.timer)
    }
}
