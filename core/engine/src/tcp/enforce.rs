//! Resets connections that the policy refuses after a change of the egress rules or of the host's addresses.

use super::connection::Connection;
use super::{Tcp, open};
use crate::config::Protocol;
use crate::ctx::Ctx;
use crate::policy::GuestForwards;
use crate::{Host, Transmit};

impl<S> Tcp<S> {
    /// Resets the connections that the policy refuses after a change of the egress rules.
    pub fn enforce<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        let (now, net) = (ctx.now, &*ctx.net);
        let forbidden = self.indices(|connection| !open::is_permitted(connection, now, net));
        forbidden.into_iter().for_each(|index| self.prohibit(index, ctx));
    }

    /// Resets the connections whose remote address belongs to the host after a change of the host's addresses.
    pub fn disown<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        let net = &*ctx.net;
        let disowned = self.indices(|connection| !open::is_reachable(connection, net));
        disowned.into_iter().for_each(|index| self.prohibit(index, ctx));
    }

    /// Resets the connections that the guest has opened by the guest forwards `before`, and whose forwards were removed.
    pub fn close_forwarded<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        before: &GuestForwards,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let forwards = &ctx.net.policy.forwards;
        let is_of = |connection: &Connection<S>| {
            let remote = connection.key.remote;
            let was = before.translate(Protocol::Tcp, remote);
            open::is_judged(connection) && was.is_some() && forwards.translate(Protocol::Tcp, remote) != was
        };
        let closed = self.indices(is_of);
        closed.into_iter().for_each(|index| self.prohibit(index, ctx));
    }

    pub(super) fn indices(&self, which: impl Fn(&Connection<S>) -> bool) -> Vec<u32> {
        let all = self.connections.iter();
        all.filter(|(_, _, connection)| which(connection))
            .map(|(index, _, _)| index)
            .collect()
    }
}
