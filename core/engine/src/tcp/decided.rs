//! Asks the decider about connections of the guest and clients of published ports, and opens or refuses them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pontoon_wire::frame::Flags;

use super::accept::{AcceptedClient, ClientRoom};
use super::connection::{Connection, ConnectionKey};
use super::open::{OpeningSegment, is_to_forwarder};
use super::stray::reply_reset;
use super::{Tcp, events, joined, loopback_forward, unreachable};
use crate::ctx::{Ctx, Net};
use crate::decider::{
    DecisionToken, Denial, Direction, Kept, KeptFrame, NewFlow, PendingKey, Ruling, Verdict,
};
use crate::egress::{DecisionGround, EgressProtocol};
use crate::flow_events::{Grounds, RefusalReason};
use crate::host::Connect;
use crate::{Failure, FlowId, Host, Kind, Transmit};

/// The host's side of a connection that the guest opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostTarget {
    /// The translated destination, or the DNS forwarder's resolver.
    Destination(SocketAddr),
    /// The address that the decider has chosen.
    Redirected(SocketAddr),
    /// The stream socket that the host was given with the verdict.
    Stream,
    /// The address of the upstream proxy, which connects to the destination.
    Proxy(SocketAddr),
}

impl HostTarget {
    pub(super) const fn is_redirected(self) -> bool {
        !matches!(self, Self::Destination(_))
    }

    /// Returns the address to which the host connects; `None` for the socket that the host was given.
    pub(super) const fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Destination(to) | Self::Redirected(to) | Self::Proxy(to) => Some(to),
            Self::Stream => None,
        }
    }

    /// Opens the host socket for the connection `flow`.
    pub(super) fn open<H: Host>(self, flow: FlowId, host: &mut H) -> Result<(H::Socket, Connect), Failure> {
        match self {
            Self::Destination(to) | Self::Redirected(to) | Self::Proxy(to) => host.tcp_connect(flow, to),
            Self::Stream => Ok((host.tcp_adopt(flow)?, Connect::Done)),
        }
    }
}

/// Returns true if the decision about the connection of a SYN is pending. A SYN with another sequence number replaces the
/// kept one, because the guest has opened the connection again.
pub(super) fn is_pending<H, T>(syn: &OpeningSegment<'_, '_>, ctx: &mut Ctx<'_, H, T>) -> bool {
    let key = pending_key(&syn.key);
    let awaits = ctx.net.awaits_decision(&key);
    if let (true, Some(decisions)) = (awaits, &mut ctx.net.decisions) {
        decisions.replace_frame(&key, KeptFrame::headers(syn.frame, syn.ip));
    }
    awaits
}

/// Returns true if the segment is a reset that cancels a pending decision.
pub(super) fn is_cancelled<H, T>(reset: &OpeningSegment<'_, '_>, ctx: &mut Ctx<'_, H, T>) -> bool {
    let Some(decisions) = &mut ctx.net.decisions else {
        return false;
    };
    let is_cancelled =
        reset.segment.flags.has(Flags::RST) && decisions.cancel_connection(&pending_key(&reset.key));
    if is_cancelled {
        ctx.net.release(&reset.key.into());
    }
    is_cancelled
}

/// Asks the decider about a connection to `destination`. Returns the host's side of an allowed connection, and the verdict as
/// the ground of its events; `None` if it was refused, belongs to another worker, or the decision is pending.
pub(super) fn judge<H, T: Transmit>(
    syn: &OpeningSegment<'_, '_>,
    destination: SocketAddr,
    ctx: &mut Ctx<'_, H, T>,
) -> Option<(HostTarget, Option<DecisionGround>)> {
    let OpeningSegment {
        key,
        frame,
        ip,
        segment,
    } = *syn;
    if ctx.net.decisions.is_none() || is_to_forwarder(&key, ctx.net) {
        return Some((HostTarget::Destination(destination), None));
    }
    // While the decision is pending, this worker owns the flow.
    if let Err(winner) = ctx.net.claim(&key.into()) {
        ctx.net.hand_over(winner, frame);
        return None;
    }
    let flow = NewFlow {
        protocol: EgressProtocol::Tcp,
        direction: Direction::Out {
            destination: key.remote,
        },
        guest: key.guest,
        remote: destination,
        key: Some(pending_key(&key)),
    };
    let keep = || Kept::Frame(KeptFrame::headers(frame, ip));
    let ruling = ctx.net.judge(&flow, ctx.now, keep);
    let denial = match ruling {
        Ruling::Allowed => return Some((HostTarget::Destination(destination), ruling.ground())),
        Ruling::Redirected(to) => return Some((HostTarget::Redirected(to), ruling.ground())),
        Ruling::RedirectedToStream => return Some((HostTarget::Stream, ruling.ground())),
        Ruling::Pending(_) => return None,
        Ruling::Denied(denial) => denial,
    };
    ctx.net.release(&key.into());
    match denial {
        Denial::Reset => reply_reset(ip, segment, ctx),
        Denial::Unreachable => {
            unreachable::send_error(&key, segment.seq, Failure::Prohibited, ctx);
            reply_reset(ip, segment, ctx);
        }
        Denial::Drop => {}
    }
    None
}

/// Releases the claim on an allowed connection that is not opened here.
pub(super) fn release(key: &ConnectionKey, net: &Net) {
    if net.decisions.is_some() {
        net.release(&(*key).into());
    }
}

/// Returns the flow of accepted clients whose decision is pending: no connection has its slot, so their events are
/// ignored.
pub(super) fn undecided(net: &Net) -> FlowId {
    net.flow(Kind::Tcp, u32::MAX, 0)
}

fn pending_key(key: &ConnectionKey) -> PendingKey {
    PendingKey::Tcp {
        guest: key.guest,
        written: key.remote,
    }
}

impl<S> Tcp<S> {
    /// Asks the decider about an accepted client of a published port. While the decision is pending, the client counts as a
    /// flow, because it has a descriptor.
    pub(super) fn judge_client<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        client: AcceptedClient<S>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let port = client.published.share_key();
        let Some(room) = self.room_for_undecided(port, ctx) else {
            let ends = events::client_ends(client.guest, client.accepted.peer);
            ctx.net.report_refused(ends, RefusalReason::Limit, ctx.now);
            return ctx.host.abort(client.accepted.socket);
        };
        let flow = NewFlow {
            protocol: EgressProtocol::Tcp,
            direction: Direction::In {
                published: client.published.host,
            },
            guest: client.guest,
            remote: client.accepted.peer,
            key: None,
        };
        match ctx.net.judge(&flow, ctx.now, || Kept::Client) {
            Ruling::Pending(token) => {
                if let ClientRoom::TimeWait(old) = room {
                    self.end_time_wait(old, ctx);
                }
                if let ClientRoom::Datagrams | ClientRoom::HalfClosed(_) = room {
                    self.undecided_in_excess = Some(token);
                }
                self.add_undecided(token, client, ctx.net);
            }
            Ruling::Allowed => self.accept_decided(client, ctx),
            Ruling::Denied(_) | Ruling::Redirected(_) | Ruling::RedirectedToStream => {
                ctx.host.abort(client.accepted.socket);
            }
        }
    }

    /// Applies the verdict about a client of a published port.
    pub(crate) fn conclude_client<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        token: DecisionToken,
        verdict: Verdict,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some(client) = self.take_undecided(token, ctx.net) else {
            return;
        };
        if client.published.is_in_guest() {
            if let Verdict::Deny(_) = verdict {
                let ends = loopback_forward::ends(client.accepted.peer, client.guest);
                ctx.net.report_denied(ends, ctx.now);
            }
            return self.conclude_from_guest(client, verdict.into(), ctx);
        }
        match verdict {
            Verdict::Allow => self.accept_decided(client, ctx),
            Verdict::Deny(_) | Verdict::Redirect(_) | Verdict::RedirectToStream => {
                let ends = events::client_ends(client.guest, client.accepted.peer);
                ctx.net.report_denied(ends, ctx.now);
                ctx.host.abort(client.accepted.socket);
            }
        }
    }

    /// Resets a client whose decision is pending.
    pub(crate) fn abort_client<H: Host<Socket = S>, T>(
        &mut self,
        token: DecisionToken,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        if let Some(client) = self.take_undecided(token, ctx.net) {
            ctx.host.abort(client.accepted.socket);
        }
    }

    /// Adds a client whose decision is pending, which counts as a flow.
    pub(super) fn add_undecided(&mut self, token: DecisionToken, client: AcceptedClient<S>, net: &mut Net) {
        net.opened();
        if let Some(port) = joined::share(&client.published) {
            net.client_opened(port);
        }
        self.undecided.insert(token, client);
    }

    /// Removes a client whose decision is pending, which does not count as a flow any more.
    fn take_undecided(&mut self, token: DecisionToken, net: &mut Net) -> Option<AcceptedClient<S>> {
        let client = self.undecided.remove(&token)?;
        net.closed();
        if let Some(port) = joined::share(&client.published) {
            net.client_closed(port);
        }
        Some(client)
    }

    /// Finds room under `--max-flows` for a client about which the decider is asked; `None` if there is none. Only after the
    /// verdict is a flow evicted, except one in TIME-WAIT, which has no descriptor. So one client at a time may exceed the
    /// limit until then.
    fn room_for_undecided<H, T>(&mut self, port: u32, ctx: &mut Ctx<'_, H, T>) -> Option<ClientRoom> {
        let room = self.room_for_client(port, ctx)?;
        let is_excess = matches!(room, ClientRoom::Datagrams | ClientRoom::HalfClosed(_));
        let exceeds = self
            .undecided_in_excess
            .is_some_and(|token| self.undecided.contains_key(&token));
        if is_excess && exceeds {
            ctx.net.counters.flows_refused += 1;
            return None;
        }
        Some(room)
    }

    /// Releases the claim on a connection about which the decider was asked, unless it is open or the decision about it is
    /// pending.
    pub(crate) fn release_unused(&self, asked: &PendingKey, net: &Net) {
        let (PendingKey::Tcp { guest, written }, Some(decisions)) = (*asked, &net.decisions) else {
            return;
        };
        let key = ConnectionKey {
            guest,
            remote: written,
        };
        if self.find(&key).is_none() && !decisions.awaits(asked) {
            net.release(&key.into());
        }
    }

    fn accept_decided<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        mut client: AcceptedClient<S>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let id = self.vacant(ctx.net);
        match ctx.host.tcp_assign(id, &mut client.accepted.socket) {
            Ok(()) => self.accept(client, Grounds::ALLOWED, ctx),
            Err(failure) => {
                ctx.net.counters.host_exhausted += 1;
                let ends = events::client_ends(client.guest, client.accepted.peer);
                ctx.net
                    .report_refused(ends, RefusalReason::Host(failure), ctx.now);
                ctx.host.abort(client.accepted.socket);
            }
        }
    }
}

impl<S> Connection<S> {
    /// Returns true if a peek on the host socket can begin at any offset. A redirected or proxied connection may have a
    /// socket of the other family.
    pub(super) fn peeks_at_offset<H: Host>(&self, host: &H) -> bool {
        match self.redirected {
            false => host.peeks_at_offset(self.key.remote.ip()),
            true => [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()]
                .into_iter()
                .all(|family_of| host.peeks_at_offset(family_of)),
        }
    }
}
