//! Guest forwards at a loopback address of the guest: the guest's kernel passes such a connection to no link, so a socket that
//! listens in the guest's network namespace accepts it, and it is joined with a socket that is connected to the host's loopback.
//!
//! The policy applies as to a SYN on the link: to the address and port to which the guest connects, and to the target.

use core::net::SocketAddr;

use super::accept::AcceptedClient;
use super::decided::HostTarget;
use super::{Tcp, events};
use crate::config::Protocol;
use crate::ctx::{Capacity, Ctx, Net};
use crate::decider::{Direction, Kept, NewFlow, Ruling};
use crate::egress::{DecisionGround, DestinationSelection, EgressProtocol};
use crate::flow_events::{CloseReason, FlowEnds, Grounds, RefusalReason};
use crate::flow_rate::{Admission, FlowOpener};
use crate::policy::{GuestForwards, Standing};
use crate::tcp::connection::ConnectionKey;
use crate::{Failure, Host, Instant, Transmit};

/// Returns protocol and both ends of a connection of the guest to `server`, as the guest sees them.
pub(super) fn ends(client: SocketAddr, server: SocketAddr) -> FlowEnds {
    events::ends(&key(client, server), false)
}

const fn key(client: SocketAddr, server: SocketAddr) -> ConnectionKey {
    ConnectionKey {
        guest: client,
        remote: server,
    }
}

/// Returns the target of a connection to a forward and the ground on which it is permitted, or counts a refusal by the policy.
pub(super) fn permit<S>(
    client: &AcceptedClient<S>,
    now: Instant,
    net: &mut Net,
) -> Option<(SocketAddr, Grounds)> {
    let to = client.published.host;
    let refused = match net.check_egress(EgressProtocol::Tcp, to.ip(), to.port(), now) {
        Ok(permitted) if !permitted.on_proof => {
            let grounds = Grounds {
                rule: permitted.ground,
                ..Grounds::NONE
            };
            return Some((permitted.remote, grounds));
        }
        // No proof is requested of a connection that does not use the link.
        Ok(_) => RefusalReason::Egress(DecisionGround::Unlisted),
        Err(refused) => refused.into(),
    };
    net.counters.policy_refused += 1;
    net.report_refused(ends(client.accepted.peer, to), refused, now);
    None
}

impl<S> Tcp<S> {
    /// Connects an accepted program of the guest to the target of the forward, or asks the decider about it. Resets it if the
    /// policy or the limits on flows do not permit the connection.
    pub(super) fn accept_from_guest<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        client: AcceptedClient<S>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some((target, grounds)) = permit(&client, ctx.now, ctx.net) else {
            return ctx.host.abort(client.accepted.socket);
        };
        if ctx.net.decisions.is_none() {
            return self.join_to_host(client, HostTarget::Destination(target), grounds, ctx);
        }
        if !ctx.net.has_room_to_join() {
            return refuse_by_limit(client, ctx);
        }
        let flow = NewFlow {
            protocol: EgressProtocol::Tcp,
            direction: Direction::Out {
                destination: client.guest,
            },
            guest: client.accepted.peer,
            remote: target,
            key: None,
        };
        match ctx.net.judge(&flow, ctx.now, || Kept::Client) {
            Ruling::Pending(token) => self.add_undecided(token, client, ctx.net),
            ruling => self.conclude_from_guest(client, ruling, ctx),
        }
    }

    /// Applies the decider's verdict about a program of the guest.
    pub(super) fn conclude_from_guest<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        client: AcceptedClient<S>,
        ruling: Ruling,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        // The rules may have changed since the decider was asked.
        let to = client.guest;
        let permitted = ctx
            .net
            .policy
            .check_again(EgressProtocol::Tcp, to.ip(), to.port(), ctx.now);
        let Ok(permitted) = permitted.map_err(|_| ctx.net.counters.policy_refused += 1) else {
            return ctx.host.abort(client.accepted.socket);
        };
        let target = match ruling {
            Ruling::Allowed => HostTarget::Destination(permitted.remote),
            Ruling::Redirected(to) => HostTarget::Redirected(to),
            Ruling::RedirectedToStream => HostTarget::Stream,
            Ruling::Denied(_) | Ruling::Pending(_) => return ctx.host.abort(client.accepted.socket),
        };
        let grounds = Grounds {
            rule: permitted.ground,
            verdict: ruling.ground(),
            proxy: None,
        };
        self.join_to_host(client, target, grounds, ctx);
    }

    /// Joins an accepted program of the guest with a socket that is connected to `target` on the host.
    pub(super) fn join_to_host<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        mut client: AcceptedClient<S>,
        target: HostTarget,
        grounds: Grounds,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let ends = ends(client.accepted.peer, client.guest);
        if !ctx.net.has_room_to_join() {
            return refuse_by_limit(client, ctx);
        }
        if ctx.net.admit(Capacity::Vacant, FlowOpener::Guest, ctx.now) == Admission::Refused {
            ctx.net.report_refused(ends, RefusalReason::Limit, ctx.now);
            return ctx.host.abort(client.accepted.socket);
        }
        let (accepted, connected) = self.joined_ids(ctx.net);
        if let Err(failure) = ctx.host.tcp_assign(accepted, &mut client.accepted.socket) {
            ctx.net.counters.host_exhausted += 1;
            ctx.net
                .report_refused(ends, RefusalReason::Host(failure), ctx.now);
            return ctx.host.abort(client.accepted.socket);
        }
        ctx.net.counters.tcp_opened += 1;
        match target.open(connected, ctx.host) {
            Ok((socket, connect)) => {
                let to = target.address().unwrap_or(client.guest);
                self.add_joined(client, to, Some(socket), connect, grounds, ctx);
            }
            Err(failure) => {
                let key = key(client.accepted.peer, client.guest);
                let reported = (target.address(), grounds);
                count_failure(failure, ctx.net);
                let reason = CloseReason::ConnectFailed(failure);
                events::report_failed(accepted, &key, reported, reason, (ctx.net, ctx.now));
                ctx.host.abort(client.accepted.socket);
            }
        }
    }

    /// Resets the connections to forwards that the egress rules refuse after a change.
    pub(super) fn enforce_joined<H: Host<Socket = S>, T>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        let (now, policy) = (ctx.now, &ctx.net.policy);
        let is_refused = |to, opened| policy.standing(to, opened, None, now) != Standing::Permitted;
        let refused = self.joined.of_guest(is_refused);
        self.prohibit_joined(refused, ctx);
    }

    /// Resets the connections to forwards of `before` that were removed.
    pub(super) fn close_forwarded_joined<H: Host<Socket = S>, T>(
        &mut self,
        before: &GuestForwards,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let forwards = &ctx.net.policy.forwards;
        let is_of = |to, _| forwards.translate(Protocol::Tcp, to) != before.translate(Protocol::Tcp, to);
        let closed = self.joined.of_guest(is_of);
        self.prohibit_joined(closed, ctx);
    }

    fn prohibit_joined<H: Host<Socket = S>, T>(&mut self, indices: Vec<u32>, ctx: &mut Ctx<'_, H, T>) {
        for index in indices {
            ctx.net.counters.policy_refused += 1;
            self.abort_joined(index, CloseReason::Policy, ctx);
        }
    }

    /// Resets the connections to forwards at destinations of `selection`, and returns their number.
    pub(super) fn end_selected_joined<H: Host<Socket = S>, T>(
        &mut self,
        selection: &DestinationSelection,
        ctx: &mut Ctx<'_, H, T>,
    ) -> usize {
        let now = ctx.now;
        let selected = self.joined.of_guest(|to, _| {
            let (protocol, port) = (EgressProtocol::Tcp, Some(to.port()));
            ctx.net
                .policy
                .is_selected(selection, protocol, to.ip(), port, now)
        });
        for &index in &selected {
            self.abort_joined(index, CloseReason::Killed, ctx);
        }
        selected.len()
    }
}

/// Resets a program of the guest for which `--max-flows` leaves no two descriptors.
fn refuse_by_limit<H: Host, T>(client: AcceptedClient<H::Socket>, ctx: &mut Ctx<'_, H, T>) {
    ctx.net.counters.flows_refused += 1;
    let ends = ends(client.accepted.peer, client.guest);
    ctx.net.report_refused(ends, RefusalReason::Limit, ctx.now);
    ctx.host.abort(client.accepted.socket);
}

/// Counts a connect of the host that has failed.
pub(super) fn count_failure(failure: Failure, net: &mut Net) {
    net.counters.host_exhausted += u64::from(failure == Failure::Exhausted);
    net.counters.tcp_connect_failed += 1;
}
