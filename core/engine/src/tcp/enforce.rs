//! Resets connections that the policy refuses after a change of the egress rules or of the host's addresses.

use super::connection::Connection;
use super::{Tcp, open};
use crate::config::Protocol;
use crate::ctx::Ctx;
use crate::egress::{DestinationSelection, EgressProtocol};
use crate::flow_events::CloseReason;
use crate::policy::{GuestForwards, Standing};
use crate::tcp::connection::TcpState;
use crate::{FlowId, Host, Transmit};

impl<S> Tcp<S> {
    /// Resets the connections that the policy refuses after a change of the egress rules.
    pub fn enforce<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        let (now, net) = (ctx.now, &*ctx.net);
        let forbidden = self.indices(|connection| open::standing(connection, now, net) == Standing::Refused);
        forbidden.into_iter().for_each(|index| self.prohibit(index, ctx));
        self.keep(&[]);
        self.waive_proofs(ctx);
        let (now, net) = (ctx.now, &*ctx.net);
        let without_proof = |connection: &Connection<S>| {
            !connection.awaits_hello() && open::standing(connection, now, net) == Standing::OnProof
        };
        for index in self.indices(without_proof) {
            self.connections.at_mut(index).require_proof();
        }
        self.enforce_joined(ctx);
    }

    /// Exempts the connections that the policy refuses after a change of the egress rules from these, and no others. Those that
    /// have not proved the name that an earlier rule required are reset.
    pub(crate) fn keep_refused<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        let (now, net) = (ctx.now, &*ctx.net);
        let standing = |connection: &Connection<S>| open::standing(connection, now, net);
        let forbidden =
            self.indices(|connection| connection.is_unproven() && standing(connection) == Standing::Refused);
        let refused = self
            .indices(|connection| !connection.is_unproven() && standing(connection) != Standing::Permitted);
        forbidden.into_iter().for_each(|index| self.prohibit(index, ctx));
        self.keep(&refused);
        self.waive_proofs(ctx);
    }

    /// Sends the data of connections whose name the egress rules do not require any more.
    fn waive_proofs<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        let (now, net) = (ctx.now, &*ctx.net);
        let waived = self.indices(|connection| {
            connection.is_unproven() && open::standing(connection, now, net) == Standing::Permitted
        });
        for index in waived {
            if let Some(proof) = &mut self.connections.at_mut(index).proof {
                proof.waive();
            }
            self.flush(index, &[], ctx);
        }
    }

    fn keep(&mut self, kept: &[u32]) {
        for index in self.indices(|connection| connection.is_kept) {
            self.connections.at_mut(index).is_kept = false;
        }
        for &index in kept {
            self.connections.at_mut(index).is_kept = true;
        }
    }

    /// Resets a connection on both sides by the user's request; returns false if there is none.
    pub(crate) fn end_by_request<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) -> bool {
        let Some(connection) = self.connections.get_mut(flow.index, flow.generation) else {
            return false;
        };
        match connection.state {
            TcpState::TimeWait { .. } => self.remove(flow.index, ctx),
            // The reset for the guest waits for room on the link.
            TcpState::Failed => {}
            TcpState::Connecting { .. } | TcpState::SynReceived | TcpState::SynSent | TcpState::Open => {
                if let Some(socket) = connection.socket.take() {
                    ctx.host.abort(socket);
                }
                self.reset(flow.index, ctx);
            }
        }
        true
    }

    /// Removes all connections. The host connections are reset, because a close would signal the end of the data to the
    /// peer.
    pub fn abort_all<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        let all: Vec<u32> = self.connections.iter().map(|(index, ..)| index).collect();
        for index in all {
            self.connections.at_mut(index).ends_by(CloseReason::GuestGone);
            if let Some(socket) = self.connections.at_mut(index).socket.take() {
                ctx.host.abort(socket);
            }
            self.remove(index, ctx);
        }
        self.abort_all_joined(ctx);
    }

    /// Resets the connections that the guest has opened to destinations of `selection`, and returns their number.
    pub(crate) fn end_selected<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        selection: &DestinationSelection,
        ctx: &mut Ctx<'_, H, T>,
    ) -> usize {
        let (now, net) = (ctx.now, &*ctx.net);
        let is_selected = |connection: &Connection<S>| {
            let to = connection.key.remote;
            let (protocol, port) = (EgressProtocol::Tcp, Some(to.port()));
            open::is_judged(connection) && net.policy.is_selected(selection, protocol, to.ip(), port, now)
        };
        let selected = self.indices(is_selected);
        for &index in &selected {
            self.end_by_request(self.id(index, ctx.net), ctx);
        }
        selected.len() + self.end_selected_joined(selection, ctx)
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
        self.close_forwarded_joined(before, ctx);
    }

    pub(super) fn indices(&self, which: impl Fn(&Connection<S>) -> bool) -> Vec<u32> {
        let all = self.connections.iter();
        all.filter(|(_, _, connection)| which(connection))
            .map(|(index, _, _)| index)
            .collect()
    }
}
