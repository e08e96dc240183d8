//! Sends datagrams that the host's sockets receive to the guest.

use core::net::SocketAddr;

use pontoon_wire::vnet::{Offload, Segmentation};
use vm_memory::VolatileSlice;

use super::Udp;
use super::gather::datagrams;
use super::peers::Side;
use crate::config::UdpFilter;
use crate::ctx::{Ctx, Net};
use crate::egress::EgressProtocol;
use crate::host::Received;
use crate::link::Room;
use crate::{Failure, FlowId, Host, Instant, Readiness, Transmit, udp_emit};

/// The result of one receive.
enum Step {
    /// The part of the quantum that was used.
    Took(usize),
    /// The socket is empty.
    Empty,
    /// The link has no room.
    Full,
}

impl<S> Udp<S> {
    /// Processes an event of a flow's socket.
    pub fn handle_socket<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ready: Readiness,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some(endpoint) = self.endpoints.get_mut(flow.index, flow.generation) else {
            return;
        };
        endpoint.troubled |= ready.error;
        // A flow that waits is processed in its turn.
        if !endpoint.queued && (ready.readable || ready.error) {
            self.serve(flow, ctx);
        }
    }

    /// Continues with a flow that was removed from [`Net::ready`](crate::ctx::Net::ready) or
    /// [`Net::parked`](crate::ctx::Net::parked).
    pub fn handle_ready<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        if let Some(endpoint) = self.endpoints.get_mut(flow.index, flow.generation) {
            endpoint.queued = false;
            self.serve(flow, ctx);
        }
    }

    /// Reads the socket until it is empty, the quantum is used up, or the link is full.
    fn serve<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        if self.endpoints.at(flow.index).troubled {
            self.report_problems(flow.index, ctx);
        }
        let mut quantum = QUANTUM;
        while quantum > 0 {
            match self.receive(flow.index, ctx) {
                Step::Took(cost) => quantum = quantum.saturating_sub(cost),
                Step::Empty if self.endpoints.at(flow.index).troubled => break,
                Step::Empty => return,
                Step::Full => {
                    self.endpoints.at_mut(flow.index).queued = true;
                    ctx.net.parked.push(flow);
                    return;
                }
            }
        }
        self.endpoints.at_mut(flow.index).queued = true;
        ctx.net.ready.push_back(flow);
    }

    /// Receives once: into the link's room if the datagrams may stay together, otherwise into the buffer.
    fn receive<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) -> Step {
        if ctx.net.throttle.down(ctx.now) == 0 {
            ctx.net.counters.held_back += 1;
            return Step::Full;
        }
        let limits = ctx.link.limits();
        let guest = self.endpoints.key(index).0;
        let headers = if guest.is_ipv4() { 20 + 8 } else { 40 + 8 };
        // A virtual machine's queue may be too short for that at any time.
        let straight = limits.uso && limits.max_gso >= LONGEST;
        let payload = if straight { LONGEST } else { 0 };
        let Some(mut room) = ctx.link.reserve(1, ETHERNET + headers, payload) else {
            return Step::Full;
        };
        let socket = &mut self.endpoints.at_mut(index).socket;
        let outcome = match straight {
            true => ctx.host.udp_receive(socket, room.payloads()),
            false => ctx
                .host
                .udp_receive(socket, &[VolatileSlice::from(&mut *self.scratch)]),
        };
        let received = match outcome {
            Ok(received) => received,
            Err(failure) => {
                drop(room);
                return self.receive_failed(index, failure, ctx);
            }
        };
        let count = datagrams(received.len, received.stride);
        let Some(written) = self.admit(index, &received, ctx.net, ctx.now) else {
            ctx.net.counters.udp_unsolicited += count as u64;
            return Step::Took(received.len.max(LEAST_COST));
        };
        ctx.net
            .throttle
            .sent_down(received.len + count * (ETHERNET + headers), ctx.now);
        let meta = received.meta;
        let stride = match received.stride {
            0 => received.len,
            stride => stride.min(received.len),
        };
        if straight && headers + stride <= limits.mtu && headers + received.len <= limits.max_gso {
            let head = udp_emit::head(ctx.net, written, guest, meta, received.len);
            let segmentation = match u16::try_from(stride) {
                Ok(len) if count > 1 => Segmentation::Udp { len },
                Ok(_) | Err(_) => Segmentation::Whole,
            };
            let offload = Offload {
                checksum: head.checksum,
                segmentation,
            };
            let counters = &mut ctx.net.counters;
            match room.commit(offload, head.bytes(), received.len) {
                Ok(()) => {
                    counters.frames_down += 1;
                    counters.udp_down += count as u64;
                }
                Err(_) => counters.link_refused += 1,
            }
            return Step::Took(received.len.max(LEAST_COST));
        }
        if straight {
            let mut left = &mut self.scratch[..received.len];
            for slice in room.payloads() {
                let copied = slice.copy_to(left);
                left = &mut left[copied..];
            }
        }
        drop(room);
        let mut left = &self.scratch[..received.len];
        for _ in 0..count {
            let (one, later) = left.split_at(left.len().min(stride));
            udp_emit::datagram(ctx.net, ctx.link, written, guest, meta, one);
            left = later;
        }
        Step::Took(received.len.max(LEAST_COST))
    }

    /// Processes an error of a receive, which an earlier send may have caused.
    fn receive_failed<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        failure: Failure,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Step {
        match failure {
            Failure::Refused
            | Failure::TimedOut
            | Failure::NetUnreachable
            | Failure::HostUnreachable
            | Failure::Prohibited
            | Failure::TooBig
            | Failure::Other(_) => {
                self.report_problems(index, ctx);
                Step::Took(ERROR_COST)
            }
            // The datagram is still in the queue, and no further event reports it.
            Failure::Exhausted => Step::Took(QUANTUM),
            Failure::WouldBlock | Failure::Reset | Failure::InUse | Failure::Invalid => Step::Empty,
        }
    }

    /// Returns the sender's address as the guest sees it, if the sender is permitted.
    fn admit(&mut self, index: u32, received: &Received, net: &mut Net, now: Instant) -> Option<SocketAddr> {
        let home = self.home(index);
        let owner = self.owner(home);
        let endpoint = self.endpoints.at_mut(home);
        let anybody = endpoint.published.is_some() || net.config.udp_filter == UdpFilter::Endpoint;
        let place = endpoint
            .peers
            .find(&self.pool, owner, Side::Remote, received.from);
        let written = match place {
            Some(place) if anybody || endpoint.peers.at(&self.pool, place).is_fresh(now) => {
                endpoint.peers.set_via(&mut self.pool, place, index);
                let peer = endpoint.peers.touch(&mut self.pool, place);
                (peer.from, peer.used) = (received.to, now);
                peer.written_for(received.from)
            }
            None if endpoint.published.is_some() || anybody && may_be_sent_to(received.from, net, now) => {
                self.meet(home, index, received, net, now)?
            }
            Some(_) | None => return None,
        };
        let endpoint = self.endpoints.at_mut(home);
        endpoint.replied = true;
        endpoint.used = now;
        endpoint.last = Some(written);
        endpoint.traffic.down += received.len as u64;
        self.endpoints.touch(home);
        Some(written)
    }
}

/// Returns true if policy permits the guest to send to a stranger: its replies are not to lead where its own datagrams
/// may not.
fn may_be_sent_to(stranger: SocketAddr, net: &Net, now: Instant) -> bool {
    let (ip, port) = (stranger.ip(), stranger.port());
    net.policy.translate_destination(ip) == Ok(ip)
        && net.policy.allows(EgressProtocol::Udp, ip, Some(port), now)
}

/// Bytes that one flow may receive in one turn.
const QUANTUM: usize = 64 << 10;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// The least cost of a receive: a call takes time even for few bytes.
const LEAST_COST: usize = 512;

/// The cost of a receive that returned an error.
const ERROR_COST: usize = QUANTUM / 16;

/// The longest datagram: IPv6's payload length is 16 bits and counts the UDP header.
const LONGEST: usize = 65_535 - 8;
