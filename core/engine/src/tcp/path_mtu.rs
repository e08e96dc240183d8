//! The way behind the guest's first interface is narrower than the guest's segment size says: a router there, which may
//! be the guest itself, drops what is too large and says what would pass (RFC 1191, RFC 8201).
//!
//! The path MTU never grows again: no message reports that, and connections end.

use pontoon_wire::frame::{Icmp, Ip};
use pontoon_wire::{protocol, quote};

use super::Tcp;
use super::connection::{Connection, ConnectionKey, TcpState, link_mss};
use super::seq::Seq;
use crate::ctx::Ctx;
use crate::{Frame, Host, Transmit};

/// "Fragmentation needed" or "packet too big", about a segment of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooBig {
    key: ConnectionKey,
    seq: Seq,
    /// Bytes of an IP packet that passes.
    mtu: usize,
}

impl TooBig {
    /// Parses the message; `None` if it is not one.
    pub(crate) fn read(frame: &Frame<'_>, ip: &Ip, icmp: &Icmp) -> Option<Self> {
        let mtu = match (ip.protocol, icmp.kind, icmp.code) {
            // Routers older than RFC 1191 say 0.
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
    /// A router has dropped a segment of ours. It is sent again in smaller ones.
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
        if self.connections.at_mut(index).narrow(too_big) {
            ctx.net.counters.tcp_too_big += 1;
            self.mark_dirty(index);
        }
    }
}

impl<S> Connection<S> {
    /// Returns true if the connection sends smaller segments from now on.
    ///
    /// Only what quotes a segment in flight is believed (RFC 5927 section 4.1).
    fn narrow(&mut self, too_big: &TooBig) -> bool {
        let down = &mut self.down;
        let in_flight = !too_big.seq.before(down.una) && too_big.seq.before(down.max);
        let mss = u32::from(link_mss(self.key.guest, too_big.mtu));
        if self.state != TcpState::Open || !in_flight || mss >= down.mss {
            return false;
        }
        down.mss = mss;
        down.go_back();
        true
    }
}

/// Linux's `ip_rt_min_pmtu`: a smaller MTU may be forged to make us send many headers.
const LEAST_V4: usize = 552;
/// RFC 8200 section 5.
const LEAST_V6: usize = 1280;
