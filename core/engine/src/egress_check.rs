//! Checks a UDP datagram or echo request from the guest before it is forwarded, and sends the guest an ICMP error if it
//! is refused.

use core::net::{IpAddr, SocketAddr};

use pontoon_wire::frame::{self, Body, Transport};

use crate::ctx::Ctx;
use crate::egress::{DecisionGround, EgressProtocol};
use crate::flow_events::FlowEnds;
use crate::local::icmp_error::{self, Reason};
use crate::policy::{Permitted, Refusal};
use crate::{Frame, Transmit};

/// A UDP datagram or echo request from the guest that is to be forwarded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'f, 'a> {
    pub(crate) frame: &'f Frame<'a>,
    pub(crate) ip: &'f frame::Ip,
    pub(crate) transport: Transport,
}

/// Error: the packet was dropped, and the guest was sent an ICMP error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropped;

impl Packet<'_, '_> {
    /// Checks the packet against the egress policy, and returns the translated address and port to which it is to be sent, and
    /// the rule that permits it.
    ///
    /// # Errors
    /// The policy refuses the destination. The packet is counted, and the guest is sent an ICMP error.
    pub(crate) fn check_egress<H, T: Transmit>(&self, ctx: &mut Ctx<'_, H, T>) -> Result<Permitted, Dropped> {
        let (protocol, port) = match &self.transport {
            Transport::Udp(udp) => (EgressProtocol::Udp, udp.destination_port),
            Transport::Tcp(tcp) => (EgressProtocol::Tcp, tcp.destination_port),
            Transport::Icmp(_) | Transport::Fragment | Transport::Other => (EgressProtocol::Icmp, 0),
        };
        let checked = ctx.net.check_egress(protocol, self.ip.destination, port, ctx.now);
        let refused = match checked {
            Ok(permitted) => return Ok(permitted),
            Err(refused) => refused,
        };
        ctx.net.counters.policy_refused += 1;
        ctx.net.counters.proxy_unsupported += u64::from(refused.refusal == Refusal::Proxy);
        ctx.net.report_refused(self.ends(), refused.into(), ctx.now);
        let tls_only = matches!(refused.ground, Some(DecisionGround::TlsOnly(_)));
        ctx.net.counters.tls_udp_refused += u64::from(tls_only);
        let reason = match refused.refusal {
            // A client of QUIC connects over TCP then.
            Refusal::Rule if tls_only => Reason::PortUnreachable,
            Refusal::Class | Refusal::HostAddress | Refusal::Rule | Refusal::Proxy => Reason::Prohibited,
            Refusal::Unassigned => Reason::HostUnreachable,
            // A host answers this for a closed port: the gateway exists, and has no open port.
            Refusal::HostLoopback => Reason::PortUnreachable,
        };
        self.refuse(reason, ctx);
        Err(Dropped)
    }

    /// Returns protocol and both ends of the packet's flow.
    pub(crate) fn ends(&self) -> FlowEnds {
        let (protocol, source, destination) = match &self.transport {
            Transport::Udp(udp) => (EgressProtocol::Udp, udp.source_port, udp.destination_port),
            Transport::Tcp(tcp) => (EgressProtocol::Tcp, tcp.source_port, tcp.destination_port),
            Transport::Icmp(icmp) => (EgressProtocol::Icmp, icmp.ident, 0),
            Transport::Fragment | Transport::Other => (EgressProtocol::Icmp, 0, 0),
        };
        FlowEnds {
            protocol,
            guest: SocketAddr::new(self.ip.source, source),
            remote: Some(SocketAddr::new(self.ip.destination, destination)),
            came_in: false,
        }
    }

    /// Checks that the packet's hop limit permits one more hop. A packet to the gateway itself (`remote` differs from
    /// the packet's destination) has arrived, whatever its hop limit.
    ///
    /// # Errors
    /// The hop limit is used up. The guest is sent the ICMP error "time exceeded", by which traceroute shows the
    /// gateway.
    pub(crate) fn check_hop_limit<H, T: Transmit>(
        &self,
        remote: IpAddr,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Dropped> {
        if self.ip.hop_limit > 1 || remote != self.ip.destination {
            return Ok(());
        }
        self.refuse(Reason::TimeExceeded, ctx);
        Err(Dropped)
    }

    /// Sends the guest an ICMP error from the gateway, with the reason why the packet was dropped.
    pub(crate) fn refuse<H, T: Transmit>(&self, reason: Reason, ctx: &mut Ctx<'_, H, T>) {
        let parsed = frame::ParsedFrame {
            source: ctx.net.guest_mac,
            destination: ctx.net.config.our_mac,
            body: Body::Ip(*self.ip, self.transport),
        };
        if let Some(gateway) = ctx.net.config.plan.gateway(self.ip.source) {
            icmp_error::refuse(ctx.net, ctx.link, gateway, reason, self.frame, &parsed);
        }
    }
}

/// Returns the hop limit with which the host sends a forwarded packet, one less than the guest's but at least 1.
pub(crate) fn next_hop_limit(hop_limit: u8) -> u8 {
    // A packet to the gateway itself may have arrived with a hop limit below two.
    hop_limit.saturating_sub(1).max(1)
}
