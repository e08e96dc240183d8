//! Sends the guest an ICMP error about a SYN whose connect has failed.

use pontoon_wire::emit;
use pontoon_wire::frame::Flags;

use super::connection::ConnectionKey;
use crate::ctx::Ctx;
use crate::local::icmp_error::{self, Reason};
use crate::{Failure, Transmit};

/// Sends the guest the ICMP error that corresponds to a failed connect, if there is one; a refused connect is reported
/// by a reset only.
pub(super) fn send_error<H, T: Transmit>(
    key: &ConnectionKey,
    isn: u32,
    failure: Failure,
    ctx: &mut Ctx<'_, H, T>,
) {
    let reason = match failure {
        Failure::NetUnreachable => Reason::NetUnreachable,
        Failure::HostUnreachable | Failure::TimedOut => Reason::HostUnreachable,
        Failure::Prohibited => Reason::Prohibited,
        Failure::WouldBlock
        | Failure::Refused
        | Failure::Reset
        | Failure::TooBig
        | Failure::Exhausted
        | Failure::InUse
        | Failure::Invalid
        | Failure::Other(_) => return,
    };
    let Some(gateway) = ctx.net.config.plan.gateway(key.guest.ip()) else {
        return;
    };
    // The quoted SYN has the guest's own sequence number, which Linux checks before it accepts the ICMP error.
    let syn = emit::tcp(
        ctx.net.ether(),
        super::ip(key.guest, key.remote),
        emit::TcpFields {
            source_port: key.guest.port(),
            destination_port: key.remote.port(),
            seq: isn,
            ack: 0,
            flags: Flags::SYN,
            window: 0,
            syn: None,
            sack: &[],
        },
        0,
    );
    let quote = &syn.bytes()[icmp_error::ETHERNET..];
    icmp_error::send(ctx.net, ctx.link, gateway, key.guest.ip(), reason, quote);
}
