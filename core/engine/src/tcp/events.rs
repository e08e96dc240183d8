//! Reports the events of connections.

use core::net::SocketAddr;

use super::connection::{Connection, ConnectionKey, TcpState};
use super::decided::HostTarget;
use super::{Tcp, open};
use crate::ctx::Net;
use crate::egress::EgressProtocol;
use crate::flow_dump::Traffic;
use crate::flow_events::{Announcement, CloseReason, FlowEnds, Grounds};
use crate::{FlowId, Instant};

impl<S> Connection<S> {
    fn ends(&self) -> FlowEnds {
        ends(&self.key, self.listener.is_some())
    }

    /// Sets the reason of the closing event, unless the connection has one already.
    pub(super) fn ends_by(&mut self, reason: CloseReason) {
        if self.close_reason == 0 {
            self.close_reason = reason.code();
        }
    }

    /// Reports that the connection has ended, unless that was reported before.
    pub(super) fn report_closed(&mut self, id: FlowId, net: &mut Net, now: Instant) {
        if net.events.is_none() {
            return;
        }
        let reason = CloseReason::of_code(self.close_reason).unwrap_or(CloseReason::Internal);
        // After a reset of the guest, its data of the current burst is not sent to the host.
        if self.state == TcpState::Open && reason != CloseReason::GuestReset {
            self.account();
        }
        let end = (reason, self.meter.traffic(), now.since(self.opened));
        net.report_closed(id, self.ends(), self.announcement, end, now);
        self.announcement = Announcement::Closed;
    }
}

impl<S> Tcp<S> {
    /// Reports that the connection in the slot `index` was opened, to `target` on the host's side.
    pub(super) fn report_opened(
        &mut self,
        index: u32,
        target: Option<SocketAddr>,
        grounds: Grounds,
        net: &mut Net,
        now: Instant,
    ) {
        if net.events.is_none() {
            return;
        }
        let id = self.id(index, net);
        let connection = self.connections.at_mut(index);
        connection.announcement = net.report_opened(id, connection.ends(), target, grounds, now);
    }

    /// Reports that all connections have ended.
    pub(crate) fn report_all_closed(&mut self, net: &mut Net, now: Instant) {
        for index in self.indices(|_| true) {
            let id = self.id(index, net);
            self.connections.at_mut(index).report_closed(id, net, now);
        }
        self.report_all_joined_closed(net, now);
    }
}

/// Reports a connection of the guest to `target` whose connect has failed at once, so that it has no slot.
pub(super) fn report_failed(
    id: FlowId,
    key: &ConnectionKey,
    (target, grounds): (Option<SocketAddr>, Grounds),
    reason: CloseReason,
    (net, now): (&mut Net, Instant),
) {
    if net.events.is_none() {
        return;
    }
    let announcement = net.report_opened(id, ends(key, false), target, grounds, now);
    let end = (reason, Traffic::default(), core::time::Duration::ZERO);
    net.report_closed(id, ends(key, false), announcement, end, now);
}

/// Returns the destination on the host's side of a connection of the guest; `None` for the DNS forwarder, whose resolver may
/// change, and for a socket that the host was given.
pub(super) fn target(key: &ConnectionKey, target: HostTarget, net: &Net) -> Option<SocketAddr> {
    match target {
        HostTarget::Destination(_) if open::is_to_forwarder(key, net) => None,
        HostTarget::Destination(to) | HostTarget::Redirected(to) | HostTarget::Proxy(to) => Some(to),
        HostTarget::Stream => None,
    }
}

/// Returns protocol and both ends of a connection.
pub(super) fn ends(key: &ConnectionKey, came_in: bool) -> FlowEnds {
    FlowEnds {
        protocol: EgressProtocol::Tcp,
        guest: key.guest,
        remote: Some(key.remote),
        came_in,
    }
}

/// Returns protocol and both ends of the connection of a published port's client that is refused.
pub(super) fn client_ends(guest: SocketAddr, peer: SocketAddr) -> FlowEnds {
    let remote = peer;
    ends(&ConnectionKey { guest, remote }, true)
}
