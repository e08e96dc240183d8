//! Ends flows by the user's request.

use super::Engine;
use crate::egress::Match;
use crate::flow_events::CloseReason;
use crate::{FlowId, Host, Instant, Kind, Transmit};

impl<H: Host> Engine<H> {
    /// Ends a flow that [`Self::flows_from`] lists: resets a TCP connection on both sides, closes a UDP endpoint or an echo id.
    /// The endpoint of a published port is opened again, without its clients. Returns the number of flows that were ended,
    /// which is 0 if the flow does not exist.
    pub fn end_flow<T: Transmit>(&mut self, id: FlowId, link: &mut T, host: &mut H, now: Instant) -> u32 {
        self.net.closing_as = Some(CloseReason::Killed);
        let (protocols, ctx) = &mut self.split(link, host, now);
        let exists = match id.kind {
            Kind::Tcp => protocols.tcp.end_by_request(id, ctx),
            Kind::Udp => protocols.udp.close(id, ctx),
            Kind::Icmp => protocols.icmp.close(id, ctx),
            Kind::Joined => protocols.tcp.end_joined(id, CloseReason::Killed, ctx),
            Kind::JoinedServer | Kind::Dns | Kind::Listener | Kind::Edge => false,
        };
        ctx.link.flush();
        ctx.net.closing_as = None;
        u32::from(exists)
    }

    /// Ends the flows that the guest has opened and whose destination `what` names, as [`Self::end_flow`]. The endpoint of a
    /// published UDP port stays, without the peers that are such destinations. Returns the number of these flows.
    pub fn end_flows_to<T: Transmit>(
        &mut self,
        what: &Match,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) -> u32 {
        let selection = self.net.policy.egress.select(what);
        self.net.closing_as = Some(CloseReason::Killed);
        let (protocols, ctx) = &mut self.split(link, host, now);
        let ended = protocols.tcp.end_selected(&selection, ctx)
            + protocols.udp.end_selected(&selection, ctx)
            + protocols.icmp.end_selected(&selection, ctx);
        ctx.link.flush();
        ctx.net.closing_as = None;
        u32::try_from(ended).unwrap_or(u32::MAX)
    }
}
