//! Receives the responses of resolvers, and sends them to the guest.

use pontoon_names::ech;
use vm_memory::VolatileSlice;

use super::message::Query;
use super::{BUFFER, Forwarder, PendingQuery, emit};
use crate::ctx::{Ctx, Net, PARKED_FIRST_LEAD};
use crate::host::Received;
use crate::proxy::ReservedAddress;
use crate::{Failure, FlowId, Host, Readiness, Transmit};

impl<S> Forwarder<S> {
    /// Handles an event of a pending query's host socket.
    pub fn handle_socket<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ready: Readiness,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        // A query in a list of waiting flows is handled when that list is processed.
        let pending = self.pending.get_mut(flow.index, flow.generation);
        if pending.is_some_and(|pending| !pending.queued) {
            self.serve(flow, ready.error, ctx);
        }
    }

    /// Continues to receive from the socket of a query that had more than `BURST` datagrams in one turn, or whose
    /// response had to wait because of `--max-bandwidth`.
    pub fn handle_ready<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        if let Some(pending) = self.pending.get_mut(flow.index, flow.generation) {
            pending.queued = false;
            pending.held_back = false;
            // `handle_socket` has ignored events meanwhile, one of which may have reported an error.
            self.serve(flow, true, ctx);
        }
    }

    /// Receives from a query's socket until it is empty, a limit for each turn is reached, or `--max-bandwidth` permits
    /// no response now. `error` states whether the socket's error queue may have entries.
    fn serve<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        error: bool,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        for _ in 0..BURST {
            let Some(pending) = self.pending.get_mut(flow.index, flow.generation) else {
                return;
            };
            if pending.socket.is_none() {
                return;
            }
            if ctx.net.throttle.down(ctx.now) == 0 {
                ctx.net.counters.held_back += 1;
                pending.held_back = true;
                pending.queued = true;
                ctx.net.parked_first.push(flow);
                return;
            }
            let failed = match self.receive_once(flow, ctx) {
                Ok(()) => continue,
                Err(failure) => failure != Failure::WouldBlock,
            };
            let pending = self.pending.get_mut(flow.index, flow.generation);
            let socket = pending.and_then(|pending| pending.socket.as_mut());
            // The content of the error queue is not needed: any error means that the query failed.
            let reported =
                (failed || error) && socket.is_some_and(|socket| ctx.host.problem(socket, &mut []).is_some());
            if failed || reported {
                self.refused(flow.index, ctx);
            }
            return;
        }
        // The socket has more datagrams than one turn may read; other flows are handled first.
        if let Some(pending) = self.pending.get_mut(flow.index, flow.generation) {
            pending.queued = true;
            ctx.net.ready.push_back(flow);
        }
    }

    /// Receives once from a query's socket, and handles the datagrams.
    fn receive_once<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Failure> {
        let pending = self.pending.get_mut(flow.index, flow.generation);
        let Some(socket) = pending.and_then(|pending| pending.socket.as_mut()) else {
            return Err(Failure::WouldBlock);
        };
        let into = [VolatileSlice::from(&mut self.buffer[..])];
        let received = ctx.host.udp_receive(socket, &into)?;
        self.receive(flow.index, received, ctx);
        Ok(())
    }

    /// Ends a query at its timeout: sends the response, if one has waited for bandwidth in the socket, or an error.
    pub(super) fn give_up<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        // These responses are added to the lead of DNS like others, so that many of them cannot exceed
        // `--max-bandwidth` for long.
        if self.pending.at(flow.index).held_back && ctx.net.parked_first_lead < PARKED_FIRST_LEAD {
            let before = ctx.net.throttle.total_down();
            let _ = (0..BURST).try_for_each(|_| self.receive_once(flow, ctx));
            ctx.net.parked_first_lead += ctx.net.throttle.total_down() - before;
        }
        if self.contains(flow) {
            self.fail(flow.index, ctx);
        }
    }

    /// Handles the datagrams of one recvmsg(2) from a query's socket: one, or several of the same size (UDP GRO).
    fn receive<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        received: Received,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let pending = self.pending.at_mut(index);
        let Some(resolver) = pending.resolver else {
            return;
        };
        let len = received.len.min(BUFFER);
        for answer in self.buffer[..len].chunks_mut(received.stride.max(1)) {
            // Scope id and flow label are not compared, because the host sets them.
            let from_resolver =
                (received.from.ip(), received.from.port()) == (resolver.ip(), resolver.port());
            if from_resolver && pending.query.is_answered_by(answer, pending.id) {
                let Ok(()) = without_ech(answer, ctx.net) else {
                    self.resolvers.answered(resolver, ctx.now);
                    self.fail(index, ctx);
                    return;
                };
                if Query::is_declined_by(answer) {
                    pending.declined.get_or_insert_with(|| answer.to_vec());
                    let given_up = pending.is_given_up(ctx.now);
                    self.resolvers.answered(resolver, ctx.now);
                    match given_up {
                        true => self.fail(index, ctx),
                        false => self.ask_another(index, ctx),
                    }
                    return;
                }
                // The egress rules learn the addresses of names before the guest can use them.
                if let Err(ReservedAddress) = ctx.net.policy.learn(answer, ctx.now) {
                    ctx.net.counters.dns_reserved += 1;
                    self.resolvers.answered(resolver, ctx.now);
                    self.fail(index, ctx);
                    return;
                }
                reply(pending, answer, ctx);
                self.resolvers.answered(resolver, ctx.now);
                self.remove(index, ctx);
                return;
            }
            ctx.net.counters.dns_mismatched += 1;
        }
    }
}

/// Removes the keys of Encrypted Client Hello from a response if a rule requires that the ClientHello is not encrypted.
fn without_ech(answer: &mut [u8], net: &mut Net) -> Result<(), ech::Malformed> {
    if !net.policy.egress.forbids_ech() {
        return Ok(());
    }
    let removal = ech::remove(answer);
    net.counters.dns_ech_removed += u64::from(removal == Ok(ech::Removal::Removed));
    net.counters.dns_ech_malformed += u64::from(removal.is_err());
    removal.map(drop)
}

/// Sends the response to each client that the bandwidth limit admits, with that client's id and letter case, which are
/// written into `answer`.
pub(super) fn reply<S, H, T: Transmit>(
    pending: &PendingQuery<S>,
    answer: &mut [u8],
    ctx: &mut Ctx<'_, H, T>,
) {
    for (place, client) in pending.clients.iter().enumerate() {
        // Responses to many clients exceed `--max-bandwidth` by at most one large datagram; the other clients
        // retransmit.
        if place * answer.len() > BUFFER && ctx.net.throttle.down(ctx.now) == 0 {
            ctx.net.counters.dns_dropped += (pending.clients.len() - place) as u64;
            return;
        }
        client.address(answer, &pending.query);
        emit(ctx, client.server, client.guest, answer);
    }
}

/// Maximum number of receives from one socket in one turn.
const BURST: usize = 32;
