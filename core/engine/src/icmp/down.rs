//! Sends echo replies and ICMP errors to the guest that the sockets of echo ids receive.

use core::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use pontoon_wire::checksum::Sum;
use pontoon_wire::vnet::Offload;
use pontoon_wire::{emit, protocol};

use super::{HEADER, Icmp};
use crate::ctx::{Ctx, Net};
use crate::egress::EgressProtocol;
use crate::host::{PingReply, Problem};
use crate::icmp_errors::{self, ErrorQueueSummary};
use crate::local::icmp_error::InvokingPacket;
use crate::udp_emit::{self, Emitted};
use crate::{Failure, FlowId, Host, Readiness, Transmit};

impl<S> Icmp<S> {
    /// Handles an event of an echo id's host socket.
    pub fn handle_socket<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ready: Readiness,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some(echo) = self.echoes.get_mut(flow.index, flow.generation) else {
            return;
        };
        echo.troubled |= ready.error;
        if !echo.queued && (ready.readable || ready.error) {
            self.serve(flow, ctx);
        }
    }

    /// Continues with an echo id that was removed from [`Net::ready`] or [`Net::parked`].
    pub fn handle_ready<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        if let Some(echo) = self.echoes.get_mut(flow.index, flow.generation) {
            echo.queued = false;
            self.serve(flow, ctx);
        }
    }

    /// Reads replies and errors from the host socket until it is empty, the quantum is used up, the link is full,
    /// or `--max-bandwidth` permits no reply now.
    fn serve<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        let index = flow.index;
        if self.echoes.at(index).troubled {
            self.report_problems(index, ctx);
        }
        let mut quantum = QUANTUM;
        while quantum > 0 {
            let is_held_back = ctx.net.throttle.down(ctx.now) == 0;
            ctx.net.counters.held_back += u64::from(is_held_back);
            if is_held_back || ctx.link.reserve(1, 0, 0).is_none() {
                self.echoes.at_mut(index).queued = true;
                ctx.net.parked.push(flow);
                return;
            }
            let socket = &mut self.echoes.at_mut(index).socket;
            match ctx.host.ping_receive(socket, &mut self.scratch) {
                Ok(reply) => {
                    quantum = quantum.saturating_sub(reply.len.max(LEAST_COST));
                    self.answer(index, &reply, ctx);
                }
                Err(Failure::WouldBlock) if self.echoes.at(index).troubled => break,
                // The reply is still in the receive queue, and no further event reports it.
                Err(Failure::Exhausted) => break,
                Err(Failure::WouldBlock | Failure::Reset | Failure::InUse | Failure::Invalid) => return,
                Err(_) => {
                    quantum = quantum.saturating_sub(ERROR_COST);
                    self.report_problems(index, ctx);
                }
            }
        }
        self.echoes.at_mut(index).queued = true;
        ctx.net.ready.push_back(flow);
    }

    /// Sends the guest the echo reply whose data is in the buffer.
    fn answer<H, T: Transmit>(&mut self, index: u32, reply: &PingReply, ctx: &mut Ctx<'_, H, T>) {
        let (guest, ident) = *self.echoes.key(index);
        let written = self.written(index, reply.from, ctx);
        // The egress rules may have changed since the request.
        let is_kept = self
            .requested
            .is_kept(self.flow(index, ctx.net), reply.from, ctx.now);
        let is_allowed =
            |to: &IpAddr| is_kept || ctx.net.policy.allows(EgressProtocol::Icmp, *to, None, ctx.now);
        let Some(source) = written.filter(is_allowed) else {
            return;
        };
        self.echoes.at_mut(index).used = ctx.now;
        self.echoes.touch(index);
        let emitted = emit_reply(
            ctx.net,
            ctx.link,
            source,
            guest,
            ident,
            reply,
            &self.scratch[..reply.len],
        );
        ctx.net.counters.ping_down += u64::from(emitted == Emitted::Accepted);
        let echo = self.echoes.at_mut(index);
        echo.answered = true;
        echo.traffic.down += reply.len as u64;
    }

    /// Reports the entries of an echo id's error queue to the guest, up to a limit for each turn.
    pub(super) fn report_problems<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        ctx: &mut Ctx<'_, H, T>,
    ) -> ErrorQueueSummary {
        let reported = icmp_errors::report(
            &mut (&mut *self, ctx),
            |(own, ctx), quote| ctx.host.problem(&mut own.echoes.at_mut(index).socket, quote),
            |(own, ctx), problem, message| own.pass_on(index, problem, message, ctx),
        );
        self.echoes.at_mut(index).troubled = reported.more;
        reported
    }

    /// Reports one entry of the error queue to the guest. `message` is the request as the host has sent it, beginning
    /// with the ICMP header; only its sequence number and data are those of the guest's request.
    fn pass_on<H, T: Transmit>(
        &self,
        index: u32,
        problem: &Problem,
        message: &[u8],
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let (guest, ident) = *self.echoes.key(index);
        let echo = self.echoes.at(index);
        let remote = problem.destination.ip();
        let Some(written) = self.written(index, remote, ctx) else {
            return;
        };
        let (seq, data) = match message {
            [8 | 128, 0, _, _, _, _, high, low, data @ ..] => (u16::from_be_bytes([*high, *low]), data),
            _ => (echo.seq, &[][..]),
        };
        let sent = InvokingPacket {
            protocol: match guest {
                IpAddr::V4(_) => protocol::ICMP,
                IpAddr::V6(_) => protocol::ICMPV6,
            },
            source: SocketAddr::new(guest, ident),
            destination: SocketAddr::new(written, seq),
            payload_len: problem.payload_len.saturating_sub(HEADER),
        };
        icmp_errors::send_error(problem, sent, data, ctx);
    }
}

/// Sends an echo reply, in fragments if it is larger than the link's MTU.
fn emit_reply<T: Transmit>(
    net: &mut Net,
    link: &mut T,
    source: IpAddr,
    guest: IpAddr,
    ident: u16,
    reply: &PingReply,
    data: &[u8],
) -> Emitted {
    let (kind, protocol) = match guest {
        IpAddr::V4(_) => (0, protocol::ICMP),
        IpAddr::V6(_) => (129, protocol::ICMPV6),
    };
    let len = HEADER + data.len();
    if source.is_ipv4() != guest.is_ipv4() || len > udp_emit::longest(guest) {
        return Emitted::Refused;
    }
    let ([a, b], [c, d]) = (ident.to_be_bytes(), reply.seq.to_be_bytes());
    let mut header = [kind, 0, 0, 0, a, b, c, d];
    let pseudo = match guest {
        IpAddr::V4(_) => Sum::new(),
        IpAddr::V6(_) => Sum::pseudo(source, guest, protocol, len),
    };
    let sum = pseudo.add(&header).add(data).finish();
    header[2..4].copy_from_slice(&sum.to_be_bytes());
    let ip = udp_emit::ip(net, source, guest, reply.meta);
    if udp_emit::ip_header(guest) + len > link.limits().mtu {
        return udp_emit::in_fragments(net, link, ip, protocol, &header, data);
    }
    let mut block = ArrayVec::<u8, 128>::new();
    let head = emit::ip(net.ether(), ip, protocol, len);
    block.extend(head.bytes().iter().chain(&header).copied());
    udp_emit::count(
        net,
        block.len() + data.len(),
        link.send(Offload::NONE, &block, data),
    )
}

/// Number of bytes that one echo id may receive in one turn, followed by the minimum cost of a reply and the cost of an
/// error in the same unit.
const QUANTUM: usize = 64 << 10;
const LEAST_COST: usize = 512;
const ERROR_COST: usize = QUANTUM / 16;
