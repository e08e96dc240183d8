//! Reports the events of endpoints.

use core::net::SocketAddr;

use super::Udp;
use crate::ctx::Net;
use crate::egress::EgressProtocol;
use crate::flow_events::{Announcement, CloseReason, FlowEnds, Grounds};
use crate::{Instant, Kind};

impl<S> Udp<S> {
    /// Reports the endpoint in the slot `index` as opened if `opened`, or else that it has the further peer `remote`.
    /// `target` is the peer on the host's side, and `grounds` are those on which it is permitted.
    pub(super) fn report_peer(
        &mut self,
        (index, opened): (u32, bool),
        remote: Option<SocketAddr>,
        target: Option<SocketAddr>,
        (came_in, grounds): (bool, Grounds),
        (net, now): (&mut Net, Instant),
    ) {
        if net.events.is_none() {
            return;
        }
        let id = net.flow(Kind::Udp, index, self.endpoints.generation(index));
        let (guest, _) = *self.endpoints.key(index);
        let ends = ends(guest, remote, came_in);
        if opened {
            self.endpoints.at_mut(index).announcement = net.report_opened(id, ends, target, grounds, now);
        } else {
            net.report_peer(id, ends, target, grounds, now);
        }
    }

    /// Reports that an endpoint has ended, with its last peer.
    pub(super) fn report_closed(&mut self, index: u32, reason: CloseReason, net: &mut Net, now: Instant) {
        if net.events.is_none() {
            return;
        }
        let id = net.flow(Kind::Udp, index, self.endpoints.generation(index));
        let (guest, _) = *self.endpoints.key(index);
        let endpoint = self.endpoints.at_mut(index);
        let ends = ends(guest, endpoint.last, endpoint.published.is_some());
        let announcement = core::mem::replace(&mut endpoint.announcement, Announcement::Closed);
        let end = (reason, endpoint.traffic, now.since(endpoint.opened));
        net.report_closed(id, ends, announcement, end, now);
    }

    /// Reports that all endpoints have ended.
    pub(crate) fn report_all_closed(&mut self, net: &mut Net, now: Instant) {
        for index in self.endpoints.places() {
            self.report_closed(index, CloseReason::Ended, net, now);
        }
    }
}

/// Returns protocol and both ends of an endpoint's flow.
pub(super) fn ends(guest: SocketAddr, remote: Option<SocketAddr>, came_in: bool) -> FlowEnds {
    FlowEnds {
        protocol: EgressProtocol::Udp,
        guest,
        remote,
        came_in,
    }
}
