//! Applies changes of the egress rules and of the host's addresses, and requests to end flows, to echo ids.

use core::net::IpAddr;
use std::collections::BTreeSet;

use pontoon_wire::frame;

use super::Icmp;
use super::requested::Requested;
use crate::ctx::Ctx;
use crate::egress::{DestinationSelection, EgressProtocol, RefusedFlows};
use crate::flow_events::CloseReason;
use crate::{Host, Transmit};

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

    /// Returns the address to which the guest has sent for `remote`, if it has sent an echo request there recently and
    /// the policy still permits it.
    pub(super) fn written<H, T>(&self, index: u32, remote: IpAddr, ctx: &Ctx<'_, H, T>) -> Option<IpAddr> {
        let flow = self.flow(index, ctx.net);
        let (written, requested) = self.requested.written(flow, remote, ctx.now)?;
        // The host may have been assigned this address since the request.
        let translated = ctx.net.policy.translate_destination(written);
        let is_permitted = match requested {
            Requested::Translated => translated == Ok(remote),
            Requested::Redirected => translated.is_ok(),
        };
        is_permitted.then_some(written)
    }

    /// Returns the address on the host's side of an echo request, if the guest has sent one with the same id there recently and
    /// the egress rules do not apply to it.
    pub(super) fn kept_remote<H, T>(
        &self,
        ip: &frame::Ip,
        ident: u16,
        ctx: &Ctx<'_, H, T>,
    ) -> Option<IpAddr> {
        let index = self.echoes.find(&(ip.source, ident))?;
        let remote = ctx.net.policy.translate_destination(ip.destination).ok()?;
        let flow = self.flow(index, ctx.net);
        self.requested.is_kept(flow, remote, ctx.now).then_some(remote)
    }
}
