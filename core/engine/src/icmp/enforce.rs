//! Applies changes of the egress rules, and requests to end flows, to echo ids.

use std::collections::BTreeSet;

use super::Icmp;
use crate::ctx::Ctx;
use crate::egress::{DestinationSelection, EgressProtocol, RefusedFlows};
use crate::flow_events::CloseReason;
use crate::{FlowId, Host, Transmit};

impl<S> Icmp<S> {
    /// Applies changed egress rules to the addresses to which the guest has sent requests: those that the rules refuse are
    /// exempted from these, or none is.
    pub(crate) fn enforce<H, T>(&mut self, refused: RefusedFlows, ctx: &Ctx<'_, H, T>) {
        let (policy, now) = (&ctx.net.policy, ctx.now);
        self.requested.keep(now, |written| match refused {
            RefusedFlows::Reset => false,
            RefusedFlows::Keep => !policy.allows(EgressProtocol::Icmp, written, None, now),
        });
    }

    /// Closes an echo id; returns false if there is none.
    pub(crate) fn end_by_request<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) -> bool {
        let exists = self.contains(flow);
        self.close(flow, ctx);
        exists
    }

    /// Closes the echo ids with which the guest has sent requests to destinations of `selection`, and returns their number.
    pub(crate) fn end_selected<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        selection: &DestinationSelection,
        ctx: &mut Ctx<'_, H, T>,
    ) -> usize {
        let (policy, now) = (&ctx.net.policy, ctx.now);
        let is_selected = |address| policy.is_selected(selection, EgressProtocol::Icmp, address, None, now);
        let requested = self
            .requested
            .recent(now)
            .filter(|(_, written)| is_selected(*written));
        let flows: BTreeSet<_> = requested.map(|(flow, _)| (flow.index, flow.generation)).collect();
        let open: Vec<_> = flows
            .into_iter()
            .filter(|&(index, generation)| self.echoes.is_current(index, generation))
            .collect();
        open.iter()
            .for_each(|&(index, _)| self.remove(index, CloseReason::Killed, ctx));
        open.len()
    }
}
