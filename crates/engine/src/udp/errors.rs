//! Errors on the host's side, told to the guest as ICMP.

use pontoon_wire::protocol;
use vm_memory::VolatileSlice;

use super::Udp;
use super::gather::Run;
use super::peers::Side;
use super::send::Unsent;
use crate::ctx::Ctx;
use crate::gate;
use crate::host::Problem;
use crate::local::icmp_error::{self, Reason, Sent};
use crate::{Failure, Host, Transmit};

/// What an error queue held.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reported {
    /// Errors that came from the network.
    pub(super) network: usize,
    /// What the host's own stack said that the path takes, about a datagram that was too big for it.
    pub(super) mtu: Option<u32>,
}

impl<S> Udp<S> {
    /// Passes on what is in the error queue of a socket, up to a bound for each turn.
    pub(super) fn report_problems<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Reported {
        let mut reported = Reported::default();
        let mut payload = [0; QUOTED];
        for _ in 0..PROBLEMS {
            let endpoint = self.endpoints.at_mut(index);
            let Some(problem) = ctx.host.problem(&mut endpoint.socket, &mut payload) else {
                endpoint.troubled = false;
                return reported;
            };
            match (problem.offender, problem.mtu) {
                // The send that met it tells the guest, with the datagram at hand.
                (None, Some(mtu)) => reported.mtu = Some(mtu),
                (None, None) | (Some(_), _) => {
                    reported.network += 1;
                    let len = problem.payload_len.min(QUOTED);
                    self.pass_on(index, &problem, &payload[..len], ctx);
                }
            }
        }
        self.endpoints.at_mut(index).troubled = true;
        reported
    }

    fn pass_on<H: Host<Socket = S>, T: Transmit>(
        &self,
        index: u32,
        problem: &Problem,
        payload: &[u8],
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let home = self.home(index);
        let (endpoint, guest) = (self.endpoints.at(home), self.endpoints.key(home).0);
        let remote = problem.destination;
        let place = endpoint
            .peers
            .find(&self.pool, self.owner(home), Side::Remote, remote);
        let written = match place {
            Some(place) => endpoint.peers.at(&self.pool, place).written_for(remote),
            None if ctx.net.policy.shown(remote.ip()) == remote.ip() => remote,
            None => return,
        };
        if !gate::is_error(guest.ip(), problem.kind) {
            return;
        }
        let Some(speaker) = gate::speaker(ctx.net, problem.offender, remote.ip(), written.ip()) else {
            return;
        };
        let reason = Reason::Reported {
            kind: problem.kind,
            code: problem.code,
            mtu: problem.mtu,
        };
        let sent = Sent {
            protocol: protocol::UDP,
            source: guest,
            destination: written,
            payload_len: problem.payload_len,
        };
        icmp_error::refuse_sent(ctx.net, ctx.link, speaker, reason, sent, payload);
    }

    /// Tells the guest of a datagram that the host would not send. `parts` begin with it.
    pub(super) fn tell_unsent<H: Host<Socket = S>, T: Transmit>(
        &self,
        run: &Run,
        parts: &[VolatileSlice<'_>],
        unsent: Unsent,
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
            // Dropped, as any network may drop a datagram.
            Failure::TooBig
            | Failure::WouldBlock
            | Failure::Reset
            | Failure::TimedOut
            | Failure::Exhausted
            | Failure::InUse
            | Failure::Invalid
            | Failure::Other(_) => return,
        };
        let Some(gateway) = ctx.net.config.addresses.gateway(written.ip()) else {
            return;
        };
        let mut payload = [0; QUOTED];
        let mut len = 0;
        for part in parts {
            len += part.copy_to(&mut payload[len..]);
        }
        let sent = Sent {
            protocol: protocol::UDP,
            source: run.heading.guest,
            destination: written,
            payload_len: run.segment.min(run.len),
        };
        icmp_error::refuse_sent(ctx.net, ctx.link, gateway, reason, sent, &payload[..len]);
    }
}

/// Entries of one error queue that are read in one turn.
const PROBLEMS: usize = 64;

/// Bytes of a datagram's data that an error quotes, at most.
const QUOTED: usize = 512;

/// What every IPv4 host accepts (RFC 791), and every IPv6 path (RFC 8200 section 5).
const LEAST_MTU_V4: u32 = 576;
const LEAST_MTU_V6: u32 = 1280;
