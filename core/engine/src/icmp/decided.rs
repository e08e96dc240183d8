//! Asks the decider about destinations of echo requests.

use core::net::{IpAddr, SocketAddr};

use pontoon_wire::frame;

use super::Icmp;
use super::requested::Requested;
use crate::ctx::{Ctx, Net};
use crate::decider::{Denial, Direction, Kept, KeptFrame, NewFlow, PendingKey, Ruling};
use crate::egress::{DecisionGround, EgressProtocol};
use crate::egress_check::Packet;
use crate::local::icmp_error::Reason;
use crate::{Host, Transmit};

/// Returns true if the decision about the destination of an echo request is pending, so that the request is dropped.
pub(super) fn is_pending(ip: &frame::Ip, icmp: &frame::Icmp, net: &mut Net) -> bool {
    net.awaits_decision(&key_of(ip, icmp))
}

fn key_of(ip: &frame::Ip, icmp: &frame::Icmp) -> PendingKey {
    PendingKey::Echo {
        guest: ip.source,
        ident: icmp.ident,
        written: ip.destination,
    }
}

impl<S> Icmp<S> {
    /// Returns the address to which an echo request is sent: `remote`, or the one that the decider has chosen. The decider
    /// is asked unless the echo id has sent to the destination recently; its verdict is returned as the ground of events.
    /// Returns `None` if the request was refused, or is kept until the verdict.
    pub(super) fn judge<H: Host<Socket = S>, T: Transmit>(
        &self,
        packet: &Packet<'_, '_>,
        icmp: &frame::Icmp,
        remote: IpAddr,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Option<(IpAddr, Requested, Option<DecisionGround>)> {
        if ctx.net.decisions.is_none() {
            return Some((remote, Requested::Translated, None));
        }
        let written = packet.ip.destination;
        let known = self.echoes.find(&(packet.ip.source, icmp.ident));
        let earlier = known.and_then(|index| {
            let flow = self.flow(index, ctx.net);
            self.requested.route(flow, written, remote, ctx.now)
        });
        if let Some((to, requested)) = earlier {
            return Some((to, requested, None));
        }
        let flow = NewFlow {
            protocol: EgressProtocol::Icmp,
            direction: Direction::Out {
                destination: SocketAddr::new(written, 0),
            },
            guest: SocketAddr::new(packet.ip.source, icmp.ident),
            remote: SocketAddr::new(remote, 0),
            key: Some(key_of(packet.ip, icmp)),
        };
        let keep = || Kept::Frame(KeptFrame::whole(packet.frame, packet.ip));
        let ruling = ctx.net.judge(&flow, ctx.now, keep);
        let denial = match ruling {
            Ruling::Allowed => return Some((remote, Requested::Translated, ruling.ground())),
            Ruling::Redirected(to) if to.is_ipv4() == written.is_ipv4() => {
                return Some((to.ip(), Requested::Redirected, ruling.ground()));
            }
            Ruling::Pending(_) => return None,
            Ruling::Redirected(_) | Ruling::RedirectedToStream => Denial::Unreachable,
            Ruling::Denied(denial) => denial,
        };
        if denial != Denial::Drop {
            packet.refuse(Reason::Prohibited, ctx);
        }
        None
    }
}
