//! Sends the guest ICMP errors about UDP datagrams that the host could not send, or about which the network has
//! reported an error.

use pontoon_wire::protocol;
use vm_memory::VolatileSlice;

use super::Udp;
use super::gather::DatagramRun;
use super::peers::AddressSide;
use crate::ctx::Ctx;
use crate::host::Problem;
use crate::icmp_errors::{self, ErrorQueueSummary, QUOTED, SendFailure};
use crate::local::icmp_error::{self, InvokingPacket, Reason};
use crate::{Failure, Host, Transmit};

impl<S> Udp<S> {
    /// Reports the entries of a host socket's error queue to the guest, up to a limit for each turn.
    pub(super) fn report_problems<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        ctx: &mut Ctx<'_, H, T>,
    ) -> ErrorQueueSummary {
        let reported = icmp_errors::report(
            &mut (&mut *self, ctx),
            |(udp, ctx), quote| ctx.host.problem(&mut udp.endpoints.at_mut(index).socket, quote),
            |(udp, ctx), problem, data| udp.pass_on(index, problem, data, ctx),
        );
        self.endpoints.at_mut(index).troubled = reported.more;
        reported
    }

    fn pass_on<H: Host<Socket = S>, T: Transmit>(
        &self,
        index: u32,
        problem: &Problem,
        data: &[u8],
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let home = self.home(index);
        let (endpoint, guest) = (self.endpoints.at(home), self.endpoints.key(home).0);
        let remote = problem.destination;
        let place = endpoint
            .peers
            .find(&self.pool, self.owner(home), AddressSide::Remote, remote);
        let written = match place {
            Some(place) => endpoint.peers.at(&self.pool, place).written_for(remote),
            // The decider may have chosen the address, which the guest does not know then.
            None if ctx.net.decisions.is_some() => return,
            None if ctx.net.policy.visible_client_addr(remote.ip()) == remote.ip() => remote,
            None => return,
        };
        let sent = InvokingPacket {
            protocol: protocol::UDP,
            source: guest,
            destination: written,
            payload_len: problem.payload_len,
        };
        icmp_errors::send_error(problem, sent, data, ctx);
    }

    /// Sends the guest an ICMP error about a datagram that the host did not send. `parts` begin with that datagram.
    pub(super) fn report_unsent<H: Host<Socket = S>, T: Transmit>(
        &self,
        run: &DatagramRun,
        parts: &[VolatileSlice<'_>],
        unsent: SendFailure,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let written = run.heading.written;
        let reason = match unsent.failure {
            Failure::Refused => Reason::PortUnreachable,
            Failure::NetUnreachable => Reason::NetUnreachable,
            Failure::HostUnreachable => Reason::HostUnreachable,
            Failure::Prohibited => Reason::Prohibited,
            Failure::TooBig if run.heading.meta.dont_fragment => Reason::TooBig {
                mtu: unsent.mtu.unwrap_or(match written.is_ipv4() {
                    true => LEAST_MTU_V4,
                    false => LEAST_MTU_V6,
                }),
            },
            // The datagram is dropped without an error, as any network may drop it.
            Failure::TooBig
            | Failure::WouldBlock
            | Failure::Reset
            | Failure::TimedOut
            | Failure::Exhausted
            | Failure::InUse
            | Failure::Invalid
            | Failure::Other(_) => return,
        };
        let Some(gateway) = ctx.net.config.plan.gateway(written.ip()) else {
            return;
        };
        let mut payload = [0; QUOTED];
        let mut len = 0;
        for part in parts {
            len += part.copy_to(&mut payload[len..]);
        }
        let sent = InvokingPacket {
            protocol: protocol::UDP,
            source: run.heading.guest,
            destination: written,
            payload_len: run.segment.min(run.len),
        };
        icmp_error::refuse_sent(ctx.net, ctx.link, gateway, reason, sent, &payload[..len]);
    }
}

/// MTUs reported if the host knows none: the packet size that every IPv4 host accepts (RFC 791), and that every IPv6
/// path accepts (RFC 8200 section 5).
const LEAST_MTU_V4: u32 = 576;
const LEAST_MTU_V6: u32 = 1280;
