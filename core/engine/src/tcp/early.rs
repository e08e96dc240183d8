//! Early accept: connections whose SYN is answered before the host connection is opened, because the name that they prove
//! decides whether they use the upstream proxy.
//!
//! A connection of this kind has no host socket until its proof. While the host connection is opened, the guest's data is held
//! as before the proof. If it cannot be opened, the guest is sent a reset.

use super::connection::{Connection, ConnectionKey, TcpState};
use super::decided::HostTarget;
use super::negotiation::Negotiation;
use super::open::{failed, give_up, is_to_forwarder, standing};
use super::{Sending, Tcp, events};
use crate::ctx::{Ctx, Net};
use crate::egress::{DecisionGround, EgressProtocol};
use crate::flow_events::Grounds;
use crate::host::Connect;
use crate::policy::Standing;
use crate::proxy::{Route, RouteBy};
use crate::{FlowId, Host, Instant, Transmit};

/// The way in which the host connection of a connection of the guest is opened.
pub(super) enum HostRoute {
    /// By a connect to this target; through the upstream proxy, the handshake with it follows.
    Chosen(HostTarget, Option<Box<Negotiation>>),
    /// The name that the connection proves decides.
    ByName,
}

impl HostRoute {
    /// Returns the route to `target`, which the policy and the decider permit. A redirected connection does not use the proxy.
    pub(super) fn choose(
        key: &ConnectionKey,
        target: HostTarget,
        by: RouteBy<'_>,
        now: Instant,
        net: &Net,
    ) -> Self {
        let route = match target {
            HostTarget::Destination(to) if !is_to_forwarder(key, net) => {
                net.policy.route(key.remote, to, by, now)
            }
            _ => Route::Direct,
        };
        match route {
            Route::Direct => Self::Chosen(target, None),
            Route::Proxy(proxied) => {
                let (first, negotiation) = Negotiation::new(proxied);
                Self::Chosen(first.map_or(target, HostTarget::Proxy), Some(negotiation))
            }
            Route::ByName => Self::ByName,
        }
    }
}

impl<S> Tcp<S> {
    /// Adds a connection whose SYN is answered before its host connection is opened.
    pub(super) fn accept_early<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        mut connection: Connection<S>,
        grounds: Grounds,
        victim: Option<FlowId>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let sending = self.send_reset_to_victim(victim, ctx);
        if sending == Sending::LinkFull {
            return ctx.net.release(&connection.key.into());
        }
        ctx.net.counters.tls_accepted_early += 1;
        connection.precede_connect();
        connection.state = TcpState::SynReceived;
        connection.pending.handshake = true;
        let index = self.add(connection, (None, grounds), ctx);
        self.end_victim(victim, ctx);
        self.flush(index, &[], ctx);
    }

    /// Opens the host connection of a connection whose SYN was answered before, by the name that it has proved.
    pub(super) fn connect_proven<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let id = self.id(index, ctx.net);
        let connection = self.connections.at_mut(index);
        let (key, now) = (connection.key, ctx.now);
        let translated = ctx.net.policy.translate(EgressProtocol::Tcp, key.remote);
        let (Standing::Permitted, Ok(to)) = (standing(connection, now, ctx.net), translated) else {
            return self.prohibit(index, ctx);
        };
        let by = connection.proven_name().map_or(RouteBy::Address, RouteBy::Name);
        let target = HostTarget::Destination(to);
        let (target, mut negotiation) = match HostRoute::choose(&key, target, by, now, ctx.net) {
            HostRoute::Chosen(target, negotiation) => (target, negotiation),
            HostRoute::ByName => (target, None),
        };
        connection.redirected = target.is_redirected();
        connection.begin_connect(now, give_up(negotiation.as_deref(), now, ctx.net));
        if negotiation.is_some() {
            let grounds = Grounds {
                proxy: Some(DecisionGround::Proxy),
                ..Grounds::NONE
            };
            ctx.net
                .report_grounds(id, events::ends(&key, false), grounds, now);
        }
        let opened = match &mut negotiation {
            Some(negotiation) => negotiation.connect(id, ctx.host),
            None => target.open(id, ctx.host),
        };
        match opened {
            Ok((socket, progress)) => {
                self.connections.at_mut(index).socket = Some(socket);
                self.negotiations.extend(negotiation.map(|it| (index, it)));
                match progress {
                    Connect::Done => self.established(index, ctx),
                    Connect::Pending => self.flush(index, &[], ctx),
                }
            }
            Err(failure) => {
                let reason = failed(negotiation.is_some(), failure);
                self.refuse(index, reason, ctx);
            }
        }
    }
}
