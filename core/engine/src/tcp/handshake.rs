//! Sends SYN and SYN-ACK segments to the guest, and retransmits them.

use pontoon_wire::emit;
use pontoon_wire::frame::Flags;

use super::Sending;
use super::connection::{Connection, SCALE, TcpState, link_mss};
use super::recovery::RetryKind;
use crate::ctx::Ctx;
use crate::{FlowId, Instant, Transmit};

/// Number of unanswered SYN or SYN-ACK segments after which the handshake fails: after 25 s, because the timeout
/// doubles.
const MOST_SYNS: u8 = 7;

/// The result of handling the retransmission timer of a SYN or SYN-ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeRetry {
    /// The segment was sent again, or its retransmission timeout has not expired.
    Pending,
    /// The last segment was not answered in time, so the handshake has failed.
    GivenUp,
}

impl<S> Connection<S> {
    /// Sends or retransmits the SYN or SYN-ACK of a connection.
    pub(super) fn send_handshake<H, T: Transmit>(&mut self, id: FlowId, ctx: &mut Ctx<'_, H, T>) {
        let answer = self.state == TcpState::SynReceived;
        let syn = emit::SynOptions {
            mss: link_mss(self.key.guest, ctx.net.mtu),
            window_scale: (!answer || self.up.scale > 0).then_some(SCALE),
            sack_permitted: !answer || self.down.sack,
        };
        let flags = if answer {
            Flags::SYN.and(Flags::ACK)
        } else {
            Flags::SYN
        };
        let iss = self.down.una;
        let sending = self.send_bare(id, iss, flags, Some(syn), ctx);
        let down = &mut self.down;
        // The deadline does not depend on the success of sending, because the link may have no room for any length of
        // time. It is not moved by a segment between two deadlines, because a guest that repeats its SYN would keep the
        // state for ever.
        let retry = (ctx.now + down.rtt.timeout(), RetryKind::Timeout);
        down.recovery.retry.get_or_insert(retry);
        if sending == Sending::LinkFull {
            return;
        }
        self.pending.handshake = false;
        if down.nxt == iss {
            down.rtt.sent(iss + 1, ctx.now);
        } else {
            down.rtt.resent();
        }
        down.nxt = iss + 1;
        down.max = iss + 1;
    }

    /// Handles the retransmission timer of a SYN or SYN-ACK.
    pub(super) fn retry_handshake(&mut self, now: Instant) -> HandshakeRetry {
        if self.down.recovery.retry.is_some_and(|(at, _)| now >= at) {
            self.down.rtt.backoff += 1;
            self.pending.handshake = true;
            self.down.recovery.retry = Some((now + self.down.rtt.timeout(), RetryKind::Timeout));
        }
        match self.down.rtt.backoff {
            ..MOST_SYNS => HandshakeRetry::Pending,
            _ => HandshakeRetry::GivenUp,
        }
    }
}
