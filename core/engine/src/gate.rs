//! What a UDP datagram or an echo request has to pass before there is a socket for it, and what the guest hears of one
//! that does not.

use core::net::IpAddr;

use pontoon_wire::frame::{self, Body, Transport};

use crate::ctx::Ctx;
use crate::egress::Protocol;
use crate::local::icmp_error::{self, Reason};
use crate::policy::Refusal;
use crate::{Frame, Transmit};

/// A packet of the guest's on its way out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'f, 'a> {
    pub(crate) frame: &'f Frame<'a>,
    pub(crate) ip: &'f frame::Ip,
    pub(crate) transport: Transport,
}

impl Packet<'_, '_> {
    /// Where policy lets the packet go. Otherwise it is counted and the guest is told.
    pub(crate) fn judge<H, T: Transmit>(&self, ctx: &mut Ctx<'_, H, T>) -> Option<IpAddr> {
        let (protocol, port) = match &self.transport {
            Transport::Udp(udp) => (Protocol::Udp, udp.destination_port),
            Transport::Tcp(tcp) => (Protocol::Tcp, tcp.destination_port),
            Transport::Icmp(_) | Transport::Fragment | Transport::Other => (Protocol::Icmp, 0),
        };
        let verdict = ctx.net.policy.judge(protocol, self.ip.destination, port, ctx.now);
        let refusal = match verdict {
            Ok(remote) => return Some(remote),
            Err(refusal) => refusal,
        };
        ctx.net.counters.policy_refused += 1;
        let reason = match refusal {
            Refusal::Class | Refusal::HostAddress | Refusal::Rule => Reason::Prohibited,
            Refusal::Nobody => Reason::HostUnreachable,
            // What a host says whose port is closed: the gateway is there, it only has nothing open.
            Refusal::HostLoopback => Reason::PortUnreachable,
        };
        self.refuse(reason, ctx);
        None
    }

    /// Whether the packet may go one hop further; one to the gateway itself (`remote` is another address than was
    /// written) has arrived. Otherwise the guest is told: that is how traceroute sees the gateway.
    pub(crate) fn lives_on<H, T: Transmit>(&self, remote: IpAddr, ctx: &mut Ctx<'_, H, T>) -> bool {
        let lives = self.ip.hop_limit > 1 || remote != self.ip.destination;
        if !lives {
            self.refuse(Reason::TimeExceeded, ctx);
        }
        lives
    }

    /// Tells the guest, as the gateway, why the packet did not get through.
    pub(crate) fn refuse<H, T: Transmit>(&self, reason: Reason, ctx: &mut Ctx<'_, H, T>) {
        let parsed = frame::Frame {
            source: ctx.net.guest_mac,
            destination: ctx.net.config.our_mac,
            body: Body::Ip(*self.ip, self.transport),
        };
        if let Some(gateway) = ctx.net.config.addresses.gateway(self.ip.source) {
            icmp_error::refuse(ctx.net, ctx.link, gateway, reason, self.frame, &parsed);
        }
    }
}

/// Hop limit of a packet that goes one hop further.
pub(crate) fn next_hop_limit(hop_limit: u8) -> u8 {
    // A packet that was meant for the gateway itself may have come with less than two.
    hop_limit.saturating_sub(1).max(1)
}
