//! Sends segments without data to the guest, in particular those that belong to no connection: resets, and probes for
//! connections of an earlier engine.

use core::net::SocketAddr;

use pontoon_wire::emit;
use pontoon_wire::frame::{self, Flags, Ip};
use pontoon_wire::vnet::{Offload, Segmentation};

use super::Sending;
use super::connection::ConnectionKey;
use crate::Transmit;
use crate::ctx::Ctx;
use crate::link::TransmitError;

/// Sends a reset in answer to a segment that belongs to no connection (RFC 9293 section 3.10.7.1).
pub(super) fn reply_reset<H, T: Transmit>(ip: &Ip, segment: &frame::Tcp, ctx: &mut Ctx<'_, H, T>) {
    let key = ConnectionKey {
        guest: SocketAddr::new(ip.source, segment.source_port),
        remote: SocketAddr::new(ip.destination, segment.destination_port),
    };
    if segment.flags.has(Flags::ACK) {
        send_reset(&key, segment.ack, 0, Flags::RST, ctx);
        return;
    }
    let len = u32::try_from(segment.payload_len).expect("a frame is at most 64 KiB")
        + u32::from(segment.flags.has(Flags::SYN))
        + u32::from(segment.flags.has(Flags::FIN));
    send_reset(
        &key,
        0,
        segment.seq.wrapping_add(len),
        Flags::RST.and(Flags::ACK),
        ctx,
    );
}

/// Sends a reset to the guest that belongs to no connection.
pub(super) fn send_reset<H, T: Transmit>(
    key: &ConnectionKey,
    seq: u32,
    ack: u32,
    flags: Flags,
    ctx: &mut Ctx<'_, H, T>,
) -> Sending {
    debug_assert!(flags.has(Flags::RST), "a reset");
    send_stray(key, seq, ack, flags, ctx)
}

/// Sends a segment to the guest that belongs to no connection.
pub(super) fn send_stray<H, T: Transmit>(
    key: &ConnectionKey,
    seq: u32,
    ack: u32,
    flags: Flags,
    ctx: &mut Ctx<'_, H, T>,
) -> Sending {
    let head = emit::tcp(
        ctx.net.ether(),
        super::ip(key.remote, key.guest),
        emit::TcpFields {
            source_port: key.remote.port(),
            destination_port: key.guest.port(),
            seq,
            ack,
            flags,
            window: 0,
            syn: None,
            sack: &[],
        },
        0,
    );
    send_head(&head, ctx)
}

/// Sends a segment without data, of which `head` has all headers.
pub(super) fn send_head<H, T: Transmit>(head: &emit::Head, ctx: &mut Ctx<'_, H, T>) -> Sending {
    let offload = Offload {
        checksum: head.checksum,
        segmentation: Segmentation::Whole,
    };
    match ctx.link.send(offload, head.bytes(), &[]) {
        Ok(()) => {
            ctx.net.counters.frames_down += 1;
            ctx.net.throttle.sent_down(head.bytes().len());
            Sending::Done
        }
        Err(error) => {
            ctx.net.counters.link_refused += 1;
            match error {
                TransmitError::Full => Sending::LinkFull,
                TransmitError::Rejected => Sending::Done,
            }
        }
    }
}
