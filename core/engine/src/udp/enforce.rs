//! Applies changes of the egress rules, and requests to end flows, to UDP endpoints and their peers.

use core::net::SocketAddr;
use std::collections::BTreeSet;

use super::Udp;
use super::peer_ports::RulesSeen;
use super::peers::Peer;
use crate::ctx::{Ctx, Net};
use crate::egress::{DestinationSelection, EgressProtocol};
use crate::flow_events::CloseReason;
use crate::{Host, Instant, Transmit};

/// Compares the egress rules with a peer that sends to the guest from `written`, as the guest sees it, if the rules were
/// replaced after the peer was stored. Returns what [`Peer::rules`] is from now on; `None` if the rules refuse the port.
pub(super) fn may_send(peer: &Peer, written: SocketAddr, net: &Net, now: Instant) -> Option<RulesSeen> {
    let (generation, port) = (net.policy.egress.generation(), written.port());
    if peer.rules.covers(generation, port) {
        return Some(peer.rules);
    }
    if peer.came_in {
        return Some(RulesSeen::new(generation));
    }
    let may = peer.ports.is_kept(port)
        || net
            .policy
            .allows(EgressProtocol::Udp, written.ip(), Some(port), now);
    may.then_some(match peer.written.port() {
        0 => RulesSeen::with_port(generation, port),
        _ => RulesSeen::new(generation),
    })
}

impl<S> Udp<S> {
    /// Exempts the peers and ports that the changed egress rules refuse from these, and no others.
    pub(crate) fn keep_refused<H, T>(&mut self, ctx: &Ctx<'_, H, T>) {
        let (policy, now) = (&ctx.net.policy, ctx.now);
        self.change_peers(|peer| {
            let address = peer.written.ip();
            let is_refused = |port| !policy.allows(EgressProtocol::Udp, address, Some(port), now);
            peer.ports.keep(is_refused);
        });
    }

    /// Subjects all peers and ports to the egress rules.
    pub(super) fn keep_none(&mut self) {
        self.change_peers(|peer| peer.ports.keep(|_| false));
    }

    /// Closes the endpoints from which the guest has sent to destinations of `selection`. Endpoints of published ports forget
    /// these peers. Returns the number of all these endpoints.
    pub(crate) fn end_selected<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        selection: &DestinationSelection,
        ctx: &mut Ctx<'_, H, T>,
    ) -> usize {
        let (policy, now) = (&ctx.net.policy, ctx.now);
        let is_selected = |peer: &Peer| {
            let address = peer.written.ip();
            let mut ports = peer.ports.recent();
            let mut selects =
                |port| policy.is_selected(selection, EgressProtocol::Udp, address, Some(port), now);
            !peer.came_in && peer.is_fresh(now) && ports.any(&mut selects)
        };
        let firsts = self.endpoints.iter().filter_map(|(index, endpoint)| {
            let first = endpoint.peers.first()?;
            is_selected(first).then_some(index)
        });
        let pooled = self.pool.owned().filter(|(_, peer)| is_selected(peer));
        let pooled = pooled.filter_map(|(owner, _)| {
            let is_open = self.endpoints.is_current(owner.index, owner.generation);
            is_open.then_some(owner.index)
        });
        let selected: BTreeSet<u32> = firsts.chain(pooled).collect();
        self.forget(is_selected);
        for &index in &selected {
            if self.endpoints.at(index).published.is_none() {
                self.remove(index, CloseReason::Killed, ctx);
            }
        }
        selected.len()
    }

    fn change_peers(&mut self, change: impl Fn(&mut Peer)) {
        self.pool.change_all(&change);
        for index in self.endpoints.places() {
            self.endpoints.at_mut(index).peers.change_first(&change);
        }
    }
}
