//! Errors about UDP datagrams and echo requests in a host socket's error queue: they are reported to the guest by ICMP,
//! and distinguished from errors of the send call that returns them.

use core::net::IpAddr;

use crate::ctx::{Ctx, Net};
use crate::host::Problem;
use crate::local::icmp_error::{self, InvokingPacket, Reason};
use crate::{Failure, Transmit};

/// Summary of the entries that one reading of an error queue has found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ErrorQueueSummary {
    /// Number of errors that the network has reported, which were reported to the guest.
    network: usize,
    /// Path MTU from the host's kernel, if it has reported that a datagram was too big.
    mtu: Option<u32>,
    /// True if the reading stopped at its limit, so that the queue may have more entries.
    pub(crate) more: bool,
}

/// The reason why a datagram or echo request was not sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendFailure {
    pub(crate) failure: Failure,
    /// Path MTU that the host's kernel has reported, if the datagram was too big.
    pub(crate) mtu: Option<u32>,
}

/// Sends a datagram with `send`, and again while attempts return errors of earlier datagrams: the kernel reports such an
/// error by failing the next call of any kind, and then clears it (ip(7)). `report` reads the socket's error queue.
pub(crate) fn send<W>(
    world: &mut W,
    send: impl Fn(&mut W) -> Result<(), Failure>,
    report: impl Fn(&mut W) -> ErrorQueueSummary,
) -> Result<(), SendFailure> {
    let mut was_empty = false;
    for _ in 0..ATTEMPTS {
        let Err(failure) = send(world) else {
            return Ok(());
        };
        if matches!(
            failure,
            Failure::WouldBlock | Failure::Exhausted | Failure::Invalid
        ) {
            return Err(SendFailure { failure, mtu: None });
        }
        let ErrorQueueSummary { network, mtu, .. } = report(world);
        let is_empty = network == 0;
        // The kernel queues an ICMP error before it makes the next call fail (`ping_err`, `__udp4_lib_err`). If the
        // entry is read in between, the call fails later although the queue is empty, but only once.
        if is_empty && (was_empty || mtu.is_some()) {
            return Err(SendFailure { failure, mtu });
        }
        was_empty = is_empty;
    }
    // Each attempt may have failed because of an earlier datagram, so nothing is known about this one.
    Err(SendFailure {
        failure: Failure::WouldBlock,
        mtu: None,
    })
}

/// Reads a socket's error queue, up to a limit for each turn. `next` removes an entry; `pass_on` receives each error of
/// the network with the bytes that it quotes.
pub(crate) fn report<W>(
    world: &mut W,
    next: impl Fn(&mut W, &mut [u8]) -> Option<Problem>,
    pass_on: impl Fn(&mut W, &Problem, &[u8]),
) -> ErrorQueueSummary {
    let mut reported = ErrorQueueSummary::default();
    let mut quote = [0; QUOTED];
    for _ in 0..PROBLEMS {
        let Some(problem) = next(world, &mut quote) else {
            return reported;
        };
        match (problem.offender, problem.mtu) {
            // The send call that failed with this error reports it to the guest, because it still has the datagram.
            (None, Some(mtu)) => reported.mtu = Some(mtu),
            (None, None) | (Some(_), _) => {
                reported.network += 1;
                let len = problem.payload_len.min(QUOTED);
                pass_on(world, &problem, &quote[..len]);
            }
        }
    }
    reported.more = true;
    reported
}

/// Sends the guest an ICMP error about its packet `sent`, of which the first bytes `data` are known.
pub(crate) fn send_error<H, T: Transmit>(
    problem: &Problem,
    sent: InvokingPacket,
    data: &[u8],
    ctx: &mut Ctx<'_, H, T>,
) {
    let (guest, written) = (sent.source.ip(), sent.destination.ip());
    if !is_error(guest, problem.kind) {
        return;
    }
    let remote = problem.destination.ip();
    let Some(speaker) = speaker(ctx.net, problem.offender, remote, written) else {
        return;
    };
    let reason = Reason::Reported {
        kind: problem.kind,
        code: problem.code,
        mtu: problem.mtu,
    };
    icmp_error::refuse_sent(ctx.net, ctx.link, speaker, reason, sent, data);
}

/// Returns true if an ICMP type is an error that is reported to the guest: destination unreachable, time exceeded,
/// parameter problem and, for IPv6, packet too big.
fn is_error(family: IpAddr, kind: u8) -> bool {
    match family {
        IpAddr::V4(_) => matches!(kind, 3 | 11 | 12),
        IpAddr::V6(_) => matches!(kind, 1..=4),
    }
}

/// Returns the source address of an ICMP error to the guest about a packet to `remote`, which the guest had sent to
/// `written`. The gateway's address is used for errors of the host itself and for addresses that must not be shown to
/// the guest.
fn speaker(net: &Net, offender: Option<IpAddr>, remote: IpAddr, written: IpAddr) -> Option<IpAddr> {
    match offender {
        Some(offender) if offender == remote => Some(written),
        Some(offender) if !net.policy.owned.contains(offender) => {
            Some(net.policy.visible_client_addr(offender))
        }
        Some(_) | None => net.config.plan.gateway(written),
    }
}

/// Maximum number of bytes that an ICMP error to the guest quotes.
pub(crate) const QUOTED: usize = 512;

/// Maximum number of attempts to send a datagram. Several ICMP errors may arrive during one call, but each fails one
/// attempt at most.
const ATTEMPTS: usize = 8;

/// Maximum number of error queue entries that are read in one turn.
const PROBLEMS: usize = 64;
