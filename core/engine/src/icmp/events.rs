//! Reports the events of echo ids.

use core::net::{IpAddr, SocketAddr};

use super::Icmp;
use crate::Instant;
use crate::ctx::Net;
use crate::egress::EgressProtocol;
use crate::flow_events::{Announcement, CloseReason, FlowEnds, Grounds};

impl<S> Icmp<S> {
    /// Reports the echo id in the slot `index` as opened if `opened`, or else its further destination. `remote` is the
    /// destination on the host's side, and `grounds` are those on which it is permitted.
    pub(super) fn report_request(
        &mut self,
        (index, opened): (u32, bool),
        ends: FlowEnds,
        (remote, grounds): (IpAddr, Grounds),
        (net, now): (&mut Net, Instant),
    ) {
        if net.events.is_none() {
            return;
        }
        let id = self.flow(index, net);
        let target = Some(SocketAddr::new(remote, 0));
        if opened {
            self.echoes.at_mut(index).announcement = net.report_opened(id, ends, target, grounds, now);
        } else if self.requested.written(id, remote, now).is_none() {
            net.report_peer(id, ends, target, grounds, now);
        }
    }

    /// Reports that an echo id has ended, with its last destination.
    pub(super) fn report_closed(&mut self, index: u32, reason: CloseReason, net: &mut Net, now: Instant) {
        if net.events.is_none() {
            return;
        }
        let id = self.flow(index, net);
        let (guest, ident) = *self.echoes.key(index);
        let echo = self.echoes.at_mut(index);
        let ends = FlowEnds {
            protocol: EgressProtocol::Icmp,
            guest: SocketAddr::new(guest, ident),
            remote: Some(SocketAddr::new(echo.asked, 0)),
            came_in: false,
        };
        let announcement = core::mem::replace(&mut echo.announcement, Announcement::Closed);
        let end = (reason, echo.traffic, now.since(echo.opened));
        net.report_closed(id, ends, announcement, end, now);
    }

    /// Reports that all echo ids have ended.
    pub(crate) fn report_all_closed(&mut self, net: &mut Net, now: Instant) {
        for index in self.echoes.places() {
            self.report_closed(index, CloseReason::Ended, net, now);
        }
    }
}
