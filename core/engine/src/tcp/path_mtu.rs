//! Path MTU behind the guest's first interface: a router there, which may be the guest itself, drops a segment that is
//! too large and reports the next-hop MTU by an ICMP error (RFC 1191, RFC 8201).
//!
//! A connection's segment size does not increase again, because no message reports a larger path MTU.

use pontoon_wire::frame::{Icmp, Ip};
use pontoon_wire::{protocol, quote};

use super::Tcp;
use super::connection::{Connection, ConnectionKey, TcpState, link_mss};
use super::seq::Seq;
use crate::ctx::Ctx;
use crate::{Frame, Host, Transmit};

/// ICMP error "fragmentation needed" or "packet too big" about a segment of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooBig {
    key: ConnectionKey,
    seq: Seq,
    /// Next-hop MTU: maximum length of an IP packet in bytes.
    mtu: usize,
}

impl TooBig {
    /// Parses the ICMP error; returns `None` if the message is of another type or does not quote a TCP segment.
    pub(crate) fn read(frame: &Frame<'_>, ip: &Ip, icmp: &Icmp) -> Option<Self> {
        let mtu = match (ip.protocol, icmp.kind, icmp.code) {
            // Routers older than RFC 1191 report an MTU of 0.
            (protocol::ICMP, 3, 4) => usize::from(icmp.seq).max(LEAST_V4),
            (protocol::ICMPV6, 2, 0) => {
                ((usize::from(icmp.ident) << 16) + usize::from(icmp.seq)).max(LEAST_V6)
            }
            _ => return None,
        };
        let mut bytes = [0; quote::LEN];
        let room = icmp.payload_len.min(quote::LEN);
        let len = frame.copy(icmp.payload_offset, &mut bytes[..room]);
        let segment = quote::QuotedSegment::read(&bytes[..len])?;
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
    /// Handles the ICMP error of a router that has dropped a segment: lowers the segment size, and retransmits the
    /// data.
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

/// The effect of an ICMP error on a connection's segment size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MssUpdate {
    /// The connection's segment size was reduced.
    Lowered,
    /// The ICMP error was ignored, and the segment size is the same.
    Unchanged,
}

impl<S> Connection<S> {
    /// Reduces the segment size if the ICMP error quotes a segment in flight (RFC 5927 section 4.1).
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

/// Minimum path MTU that is accepted for IPv4, equal to Linux's `ip_rt_min_pmtu`, because a forged smaller one would
/// cause many headers.
const LEAST_V4: usize = 552;
/// Minimum path MTU of IPv6 (RFC 8200 section 5).
const LEAST_V6: usize = 1280;
