//! Sends datagrams to the guest that host sockets receive.

use core::net::SocketAddr;

use pontoon_wire::vnet::{Offload, Segmentation};
use vm_memory::VolatileSlice;

use super::gather::datagrams;
use super::peers::{AddressSide, Peer};
use super::{Udp, decided, enforce};
use crate::config::UdpFilter;
use crate::ctx::{Ctx, Net};
use crate::egress::EgressProtocol;
use crate::flow_events::Grounds;
use crate::host::Received;
use crate::link::Room;
use crate::{Failure, FlowId, Host, Instant, Readiness, Transmit, udp_emit};

/// The result of one receive from a host socket.
enum ReceiveStep {
    /// The receive used this number of bytes of the quantum.
    Took(usize),
    /// The host socket's receive queue is empty.
    Empty,
    /// The link has no room for the datagram.
    Full,
}

impl<S> Udp<S> {
    /// Handles an event of an endpoint's host socket.
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
        // An endpoint in a list of waiting flows is handled in its turn.
        if !endpoint.queued && (ready.readable || ready.error) {
            self.serve(flow, ctx);
        }
    }

    /// Continues with an endpoint that was removed from [`Net::ready`](crate::ctx::Net::ready) or
    /// [`Net::parked`](crate::ctx::Net::parked).
    pub fn handle_ready<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        if let Some(endpoint) = self.endpoints.get_mut(flow.index, flow.generation) {
            endpoint.queued = false;
            self.serve(flow, ctx);
        }
    }

    /// Reads the host socket until it is empty, the quantum is used up, or the link is full.
    fn serve<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        if self.endpoints.at(flow.index).troubled {
            self.report_problems(flow.index, ctx);
        }
        let mut quantum = QUANTUM;
        while quantum > 0 {
            match self.receive(flow.index, ctx) {
                ReceiveStep::Took(cost) => quantum = quantum.saturating_sub(cost),
                ReceiveStep::Empty if self.endpoints.at(flow.index).troubled => break,
                ReceiveStep::Empty => return,
                ReceiveStep::Full => {
                    self.endpoints.at_mut(flow.index).queued = true;
                    ctx.net.parked.push(flow);
                    return;
                }
            }
        }
        self.endpoints.at_mut(flow.index).queued = true;
        ctx.net.ready.push_back(flow);
    }

    /// Receives once: into link memory if the datagrams may stay together, otherwise into the buffer.
    fn receive<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        ctx: &mut Ctx<'_, H, T>,
    ) -> ReceiveStep {
        if ctx.net.throttle.down(ctx.now) == 0 {
            ctx.net.counters.held_back += 1;
            return ReceiveStep::Full;
        }
        let limits = ctx.link.limits();
        let guest = self.endpoints.key(index).0;
        let headers = headers_len(guest);
        // The queue of a virtual machine may be too short for a super-frame at any time.
        let straight = limits.uso && limits.max_gso >= LONGEST;
        let payload = if straight { LONGEST } else { 0 };
        let Some(mut room) = ctx.link.reserve(1, ETHERNET + headers, payload) else {
            return ReceiveStep::Full;
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
        let written = match self.admit(index, &received, ctx.net, ctx.now) {
            Sender::Admitted(written) => written,
            Sender::Refused => {
                ctx.net.counters.udp_unsolicited += count as u64;
                return ReceiveStep::Took(received.len.max(LEAST_COST));
            }
            Sender::Undecided => {
                let payload = match straight {
                    true => decided::gathered(room.payloads(), received.len),
                    false => self.scratch[..received.len].to_vec(),
                };
                drop(room);
                self.judge_client(index, received, &payload, ctx);
                return ReceiveStep::Took(received.len.max(LEAST_COST));
            }
        };
        let stride = match received.stride {
            0 => received.len,
            stride => stride.min(received.len),
        };
        if straight && headers + stride <= limits.mtu && headers + received.len <= limits.max_gso {
            commit(ctx.net, &mut room, (written, guest), &received, stride);
            return ReceiveStep::Took(received.len.max(LEAST_COST));
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
            udp_emit::datagram(ctx.net, ctx.link, written, guest, received.meta, one);
            left = later;
        }
        ReceiveStep::Took(received.len.max(LEAST_COST))
    }

    /// Handles an error of a receive, which an earlier send may have caused.
    fn receive_failed<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        failure: Failure,
        ctx: &mut Ctx<'_, H, T>,
    ) -> ReceiveStep {
        match failure {
            Failure::Refused
            | Failure::TimedOut
            | Failure::NetUnreachable
            | Failure::HostUnreachable
            | Failure::Prohibited
            | Failure::TooBig
            | Failure::Other(_) => {
                self.report_problems(index, ctx);
                ReceiveStep::Took(ERROR_COST)
            }
            // The datagram is still in the receive queue, and no further event reports it.
            Failure::Exhausted => ReceiveStep::Took(QUANTUM),
            Failure::WouldBlock | Failure::Reset | Failure::InUse | Failure::Invalid => ReceiveStep::Empty,
        }
    }

    /// Returns the sender's address as the guest sees it, unless the endpoint's filter or the policy refuses the sender, or
    /// the decider has to be asked about it.
    fn admit(&mut self, index: u32, received: &Received, net: &mut Net, now: Instant) -> Sender {
        let home = self.home(index);
        let owner = self.owner(home);
        let endpoint = self.endpoints.at_mut(home);
        let anybody = endpoint.published.is_some() || net.config.udp_filter == UdpFilter::Endpoint;
        let place = endpoint
            .peers
            .find(&self.pool, owner, AddressSide::Remote, received.from);
        // The decider is asked again about a destination of the guest after silence, so that it is a stranger by then.
        let is_known =
            |peer: &Peer| peer.is_fresh(now) || anybody && (peer.came_in || net.decisions.is_none());
        let written = match place.filter(|place| is_known(endpoint.peers.at(&self.pool, *place))) {
            Some(place) => {
                let peer = endpoint.peers.at(&self.pool, place);
                let written = peer.written_for(received.from);
                let Some(rules) = enforce::may_send(peer, written, net, now) else {
                    return Sender::Refused;
                };
                endpoint.peers.set_via(&mut self.pool, place, index);
                let peer = endpoint.peers.touch(&mut self.pool, place);
                (peer.from, peer.used, peer.rules) = (received.to, now, rules);
                written
            }
            None if endpoint.published.is_some() && net.decisions.is_some() => return Sender::Undecided,
            None if endpoint.published.is_some() || anybody && may_be_sent_to(received.from, net, now) => {
                match self.add_client(home, index, received, Grounds::NONE, (net, now)) {
                    Some(written) => written,
                    None => return Sender::Refused,
                }
            }
            None => return Sender::Refused,
        };
        self.count_received(home, written, received.len, now);
        Sender::Admitted(written)
    }

    /// Records datagrams of `len` bytes that the endpoint at `home` has received from `written`.
    pub(super) fn count_received(&mut self, home: u32, written: SocketAddr, len: usize, now: Instant) {
        let endpoint = self.endpoints.at_mut(home);
        endpoint.replied = true;
        endpoint.used = now;
        endpoint.last = Some(written);
        endpoint.traffic.down += len as u64;
        self.endpoints.touch(home);
    }
}

/// The result of looking up the sender of a datagram to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    /// The sender may send to the guest, which sees this address.
    Admitted(SocketAddr),
    /// The endpoint's filter or the policy refuses the sender.
    Refused,
    /// The sender is a new client of a published port, about which the decider has to be asked.
    Undecided,
}

/// Sends the guest one frame of the datagrams that are in the link memory `room`. Each has `stride` bytes except the last.
fn commit(
    net: &mut Net,
    room: &mut impl Room,
    (from, guest): (SocketAddr, SocketAddr),
    received: &Received,
    stride: usize,
) {
    let count = datagrams(received.len, received.stride);
    let head = udp_emit::head(net, from, guest, received.meta, received.len);
    let segmentation = match u16::try_from(stride) {
        Ok(len) if count > 1 => Segmentation::Udp { len },
        Ok(_) | Err(_) => Segmentation::Whole,
    };
    let offload = Offload {
        checksum: head.checksum,
        segmentation,
    };
    match room.commit(offload, head.bytes(), received.len) {
        Ok(()) => {
            net.counters.frames_down += 1;
            net.counters.udp_down += count as u64;
            let headers = ETHERNET + headers_len(guest);
            net.throttle.sent_down(received.len + count * headers);
        }
        Err(_) => net.counters.link_refused += 1,
    }
}

/// Returns the length of the IP and UDP headers of a datagram to the guest.
const fn headers_len(guest: SocketAddr) -> usize {
    if guest.is_ipv4() { 20 + 8 } else { 40 + 8 }
}

/// Returns true if the policy permits the guest to send to an unknown sender. Otherwise the sender is refused, because
/// the guest's replies would reach a destination that its own datagrams may not reach.
fn may_be_sent_to(stranger: SocketAddr, net: &Net, now: Instant) -> bool {
    let (ip, port) = (stranger.ip(), stranger.port());
    net.policy.translate(EgressProtocol::Udp, stranger) == Ok(stranger)
        && net.policy.allows(EgressProtocol::Udp, ip, Some(port), now)
}

/// Number of bytes that one endpoint may receive in one turn.
const QUANTUM: usize = 64 << 10;

/// Length of an Ethernet header in bytes.
const ETHERNET: usize = 14;

/// Minimum cost of a receive in bytes of the quantum, because a system call takes time even for few bytes.
const LEAST_COST: usize = 512;

/// Cost of a receive that returned an error, in bytes of the quantum.
const ERROR_COST: usize = QUANTUM / 16;

/// Maximum payload of a UDP datagram in bytes: IPv6's field Payload Length has 16 bits and includes the UDP header.
const LONGEST: usize = 65_535 - 8;
