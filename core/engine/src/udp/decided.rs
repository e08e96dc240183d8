//! Asks the decider about destinations of the guest's endpoints and about clients of published ports.

use core::net::SocketAddr;

use vm_memory::VolatileSlice;

use super::Udp;
use super::gather::{RunHeaders, datagrams};
use crate::ctx::{Ctx, Net};
use crate::decider::{
    Denial, Direction, Kept, KeptDatagrams, KeptFrame, NewFlow, PendingKey, Ruling, Verdict,
};
use crate::egress::{DecisionGround, EgressProtocol};
use crate::egress_check::Packet;
use crate::flow_events::{FlowEnds, Grounds};
use crate::host::Received;
use crate::local::icmp_error::Reason;
use crate::siblings::FlowKey;
use crate::{Host, Transmit, udp_emit};

/// The destination of a datagram on the host's side, after the decision about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DecidedRemote {
    pub(super) remote: SocketAddr,
    /// True if the decider has chosen the address.
    pub(super) redirected: bool,
    /// The verdict about a new destination, for its events.
    pub(super) verdict: Option<DecisionGround>,
}

/// Returns true if the decision about the destination of a datagram is pending, so that the datagram is dropped.
pub(super) fn is_pending(heading: &RunHeaders, net: &mut Net) -> bool {
    net.awaits_decision(&key_of(heading))
}

fn key_of(heading: &RunHeaders) -> PendingKey {
    PendingKey::Udp {
        guest: heading.guest,
        written: heading.written,
    }
}

impl<S> Udp<S> {
    /// Asks the decider about a destination to which an endpoint has not sent recently. Returns `None` if the datagram was
    /// refused, belongs to another worker, or is kept until the verdict.
    pub(super) fn judge<H: Host<Socket = S>, T: Transmit>(
        &self,
        heading: &RunHeaders,
        packet: &Packet<'_, '_>,
        remote: SocketAddr,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Option<DecidedRemote> {
        let allowed = |verdict| DecidedRemote {
            remote,
            redirected: false,
            verdict,
        };
        if ctx.net.decisions.is_none() {
            return Some(allowed(None));
        }
        let RunHeaders { guest, written, .. } = *heading;
        // While the decision is pending, this worker owns the endpoint.
        if let Err(winner) = ctx.net.claim(&FlowKey::Udp(guest)) {
            ctx.net.hand_over(winner, packet.frame);
            return None;
        }
        let flow = NewFlow {
            protocol: EgressProtocol::Udp,
            direction: Direction::Out { destination: written },
            guest,
            remote,
            key: Some(key_of(heading)),
        };
        let keep = || Kept::Frame(KeptFrame::whole(packet.frame, packet.ip));
        let ruling = ctx.net.judge(&flow, ctx.now, keep);
        let denial = match ruling {
            Ruling::Allowed => return Some(allowed(ruling.ground())),
            Ruling::Redirected(remote) if remote.is_ipv4() == written.is_ipv4() => {
                return Some(DecidedRemote {
                    remote,
                    redirected: true,
                    verdict: ruling.ground(),
                });
            }
            Ruling::Pending(_) => return None,
            Ruling::Redirected(_) | Ruling::RedirectedToStream => Denial::Unreachable,
            Ruling::Denied(denial) => denial,
        };
        self.release_unused(guest, ctx.net);
        match denial {
            Denial::Reset => packet.refuse(Reason::PortUnreachable, ctx),
            Denial::Unreachable => packet.refuse(Reason::Prohibited, ctx),
            Denial::Drop => {}
        }
        None
    }

    /// Releases the claim on the endpoint `guest`, unless it is open or another decision about it is pending.
    pub(crate) fn release_unused(&self, guest: SocketAddr, net: &Net) {
        let Some(decisions) = net.decisions.as_ref().filter(|_| net.siblings.is_some()) else {
            return;
        };
        if self.endpoints.find(&(guest, 0)).is_none() && !decisions.awaits_endpoint(guest) {
            net.release(&FlowKey::Udp(guest));
        }
    }

    /// Asks the decider about a new client of a published port. `payload` is its first datagrams, which the socket of the
    /// endpoint at `index` has received.
    pub(super) fn judge_client<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        received: Received,
        payload: &[u8],
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let guest = self.endpoints.key(index).0;
        let key = PendingKey::UdpClient {
            guest,
            client: received.from,
        };
        if ctx.net.awaits_decision(&key) {
            return;
        }
        let place = self.endpoints.at(index).published;
        let Some(published) = place.and_then(|place| ctx.net.config.published.get(place as usize)) else {
            return;
        };
        let flow = NewFlow {
            protocol: EgressProtocol::Udp,
            direction: Direction::In {
                published: published.host,
            },
            guest,
            remote: received.from,
            key: Some(key),
        };
        let datagrams = || KeptDatagrams {
            index,
            generation: self.endpoints.generation(index),
            received,
            payload: payload.to_vec(),
        };
        let ruling = ctx.net.judge(&flow, ctx.now, || Kept::Datagrams(datagrams()));
        if ruling == Ruling::Allowed {
            let datagrams = datagrams();
            self.conclude_client(&datagrams, Verdict::Allow, ctx);
        }
    }

    /// Applies the verdict about a client: sends its datagrams to the guest, or drops them.
    pub(crate) fn conclude_client<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        kept: &KeptDatagrams,
        verdict: Verdict,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let KeptDatagrams {
            index,
            generation,
            received,
            payload,
        } = kept;
        // The port may not be published any more.
        if self.endpoints.get_mut(*index, *generation).is_none() {
            return;
        }
        let home = self.home(*index);
        let guest = self.endpoints.key(home).0;
        if verdict != Verdict::Allow {
            let ends = FlowEnds {
                protocol: EgressProtocol::Udp,
                guest,
                remote: Some(received.from),
                came_in: true,
            };
            return ctx.net.report_denied(ends, ctx.now);
        }
        let grounds = Grounds::ALLOWED;
        let client = self.add_client(home, *index, received, grounds, (ctx.net, ctx.now));
        let Some(written) = client else {
            ctx.net.counters.udp_unsolicited += datagrams(received.len, received.stride) as u64;
            return;
        };
        self.count_received(home, written, received.len, ctx.now);
        let mut left = &payload[..];
        for _ in 0..datagrams(received.len, received.stride) {
            let stride = match received.stride {
                0 => left.len(),
                stride => stride.min(left.len()),
            };
            let (one, later) = left.split_at(stride);
            udp_emit::datagram(ctx.net, ctx.link, written, guest, received.meta, one);
            left = later;
        }
    }
}

/// Copies `len` bytes from the slices that a receive has filled.
pub(super) fn gathered(slices: &[VolatileSlice<'_>], len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut at = 0;
    for slice in slices {
        at += slice.copy_to(&mut bytes[at..]);
    }
    bytes
}
