//! Path MTU behind the guest's first interface: a router there, which may be the guest itself, drops a segment that is too
//! large and reports the MTU (RFC 1191, RFC 8201).
//!
//! The path MTU never grows again: no message reports that.

use pontoon_wire::frame::{Icmp, Ip};
use pontoon_wire::{protocol, quote};

use super::Tcp;
use super::connection::{Connection, ConnectionKey, TcpState, link_mss};
use super::seq::Seq;
use crate::ctx::Ctx;
use crate::{Frame, Host, Transmit};

/// "Fragmentation needed" or "packet too big", about a segment from the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooBig {
    key: ConnectionKey,
    seq: Seq,
    /// The MTU: bytes of an IP packet.
    mtu: usize,
}

impl TooBig {
    /// Parses the message; `None` if it is not one.
    pub(crate) fn read(frame: &Frame<'_>, ip: &Ip, icmp: &Icmp) -> Option<Self> {
        let mtu = match (ip.protocol, icmp.kind, icmp.code) {
            // Routers older than RFC 1191 report 0.
            (protocol::ICMP, 3, 4) => usize::from(icmp.seq).max(LEAST_V4),
            (protocol::ICMPV6, 2, 0) => {
                ((usize::from(icmp.ident) << 16) + usize::from(icmp.seq)).max(LEAST_V6)
            }
            _ => return None,
        };
        let mut bytes = [0; quote::LEN];
        let room = icmp.payload_len.min(quote::LEN);
        let len = frame.copy(icmp.payload_offset, &mut bytes[..room]);
        let segment = quote::Segment::read(&bytes[..len])?;
        Some(Self {
            key: ConnectionKey {
                guest: segment.destination,
                remote: segment.source,
            },
            seq: Seq(segment.seq),
            mtu,
        })
    }
}

impl<S> Tcp<S> {
    /// Processes a router's report that it has dropped a segment, which is retransmitted in smaller ones.
    pub(crate) fn handle_too_big<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        too_big: &TooBig,
        frame: &Frame<'_>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some(index) = self.find(&too_big.key) else {
            ctx.net.hand_over_to_owner(&too_big.key.into(), frame);
            return;
        };
        ctx.net.current_flow = Some(self.id(index, ctx.net));
        let mss = self.connections.at_mut(index).narrow(too_big);
        if mss == MssUpdate::Lowered {
            ctx.net.counters.tcp_too_big += 1;
            self.mark_dirty(index);
        }
    }
}

/// The segment size after a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MssUpdate {
    /// Segments are smaller from now on.
    Lowered,
    /// The report was ignored.
    Unchanged,
}

impl<S> Connection<S> {
    /// Lowers the segment size, if the report quotes a segment in flight (RFC 5927 section 4.1).
    fn narrow(&mut self, too_big: &TooBig) -> MssUpdate {
        let down = &mut self.down;
        let in_flight = !too_big.seq.before(down.una) && too_big.seq.before(down.max);
        let mss = u32::from(link_mss(self.key.guest, too_big.mtu));
        if self.state != TcpState::Open || !in_flight || mss >= down.mss {
            return MssUpdate::Unchanged;
        }
        down.mss = mss;
        down.go_back();
        MssUpdate::Lowered
    }
}

/// Linux's `ip_rt_min_pmtu`: a forged smaller MTU would cause many headers.
const LEAST_V4: usize = 552;
/// RFC 8200 section 5.
const LEAST_V6: usize = 1280;
