//! Handles segments from the guest (RFC 9293 section 3.10.7, RFC 5961).

use core::time::Duration;

use pontoon_wire::frame::{self, Flags};

use super::Burst;
use super::connection::{Connection, TcpState};
use super::seq::Seq;
use crate::ctx::Ctx;
use crate::{Frame, Host, Instant};

/// The result of handling a segment from the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The segment is dropped, or has changed nothing that needs further work.
    Ignored,
    /// The segment has caused pending work of the connection.
    Changed,
    /// The segment is a valid reset of the guest, which ends the connection.
    Reset,
    /// The segment acknowledges bytes that were never sent. It is answered by a reset, and the connection continues.
    Unacceptable,
    /// TIME-WAIT ends, because this SYN opens a new connection with the same key.
    Reopened,
}

impl<S> Connection<S> {
    /// Updates the connection with a segment. Its data is added to the burst; nothing is sent to host or guest yet.
    pub(super) fn receive<'a, H: Host<Socket = S>, T>(
        &mut self,
        slot: u32,
        segment: &frame::Tcp,
        frame: &Frame<'a>,
        burst: &mut Burst<'a>,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Verdict {
        let (seq, flags) = (Seq(segment.seq), segment.flags);
        let mut changed = false;
        match self.state {
            TcpState::Connecting { .. } => match flags.has(Flags::RST) && seq == self.up.next {
                true => return Verdict::Reset,
                false => return Verdict::Ignored,
            },
            TcpState::SynSent => return self.receive_syn_ack(segment, ctx),
            TcpState::SynReceived => {
                if let Some(verdict) = self.receive_before_establishment(segment, ctx.now) {
                    return verdict;
                }
                // The host socket may have received data before the handshake with the guest was complete.
                changed = self.state == TcpState::Open;
                if let (true, Some(proof)) = (changed, &mut self.proof) {
                    proof.begin(ctx.net, ctx.now);
                }
            }
            TcpState::TimeWait { .. } => return self.receive_late(segment),
            // The pending reset answers this segment, too. A SYN is retransmitted by the guest until the connection is
            // removed.
            TcpState::Failed => return Verdict::Ignored,
            TcpState::Open => {}
        }
        if flags.has(Flags::RST) {
            return self.receive_reset(seq, ctx);
        }
        if flags.has(Flags::SYN) {
            return self.challenge(ctx);
        }
        if self.state != TcpState::Open || !flags.has(Flags::ACK) {
            return Verdict::Ignored;
        }
        if seq + 1 == self.up.next && segment.payload_len <= 1 && !flags.has(Flags::FIN) && !self.up.closed {
            self.pending.ack = true;
            if let Some(socket) = self.socket.as_mut().filter(|_| !self.keepalive) {
                ctx.host.tcp_keepalive(socket, None);
                self.keepalive = true;
            }
            if segment.payload_len == 1 {
                return Verdict::Changed;
            }
        } else if !self.is_acceptable(segment) {
            // A segment with data cannot be part of an ACK loop, and may be a retransmission that needs an
            // acknowledgement.
            return match segment.payload_len > 0 || flags.has(Flags::FIN) {
                true => self.challenge_ack(ctx),
                false => self.challenge(ctx),
            };
        }
        // RFC 5961 section 5.2: the acknowledgement must not exceed the data sent, nor be older than the widest window.
        let ack = Seq(segment.ack);
        if ack.after(self.down.max) || ack.before(self.down.una - self.down.max_wnd) {
            return self.challenge(ctx);
        }
        let verdict = self.receive_ack(segment, ctx.now);
        changed |= verdict == Verdict::Changed;
        if segment.payload_len > 0 {
            self.take_data(slot, segment, frame, burst, ctx.net);
        }
        if flags.has(Flags::FIN) {
            let fin = seq + u32::try_from(segment.payload_len).expect("a frame is at most 64 KiB");
            if self.up.fin.is_none() && !fin.after(self.up.edge) {
                self.up.fin = Some(fin);
            }
            self.pending.ack = true;
        }
        changed |= self.pending.ack || self.pending.ack_later;
        if changed {
            Verdict::Changed
        } else {
            Verdict::Ignored
        }
    }

    /// Handles a segment in SYN-RECEIVED. Returns `None` if the checks of this state do not end the handling.
    fn receive_before_establishment(&mut self, segment: &frame::Tcp, now: Instant) -> Option<Verdict> {
        let (seq, flags) = (Seq(segment.seq), segment.flags);
        if flags.has(Flags::SYN) && !flags.has(Flags::ACK) && seq + 1 == self.up.next {
            self.pending.handshake = true;
            return Some(Verdict::Changed);
        }
        if flags.has(Flags::RST) {
            return None;
        }
        if !self.is_acceptable(segment) {
            return Some(Verdict::Ignored);
        }
        if flags.has(Flags::ACK) && Seq(segment.ack) != self.down.nxt {
            return Some(Verdict::Unacceptable);
        }
        if flags.has(Flags::ACK) && !flags.has(Flags::SYN) {
            self.establish(now);
        }
        None
    }

    /// Handles a reset from the guest (RFC 5961 section 3.2).
    fn receive_reset<H, T>(&mut self, seq: Seq, ctx: &mut Ctx<'_, H, T>) -> Verdict {
        // A guest that has filled the window sends its reset at the window's edge. On macOS, segments after the FIN
        // have the FIN's sequence number, which Linux accepts, too (`tcp_reset_check`).
        let exact = seq == self.up.next || (self.up.closed && seq + 1 == self.up.next);
        match (exact, self.in_window(seq) || seq == self.up.edge) {
            (true, _) => Verdict::Reset,
            (false, true) => self.challenge(ctx),
            (false, false) => Verdict::Ignored,
        }
    }

    fn in_window(&self, seq: Seq) -> bool {
        !seq.before(self.up.next) && seq.before(self.up.edge)
    }

    /// Returns true if a part of the segment is in the receive window, or if it is at the window's edge while the
    /// window is closed (RFC 9293 section 3.10.7.4).
    fn is_acceptable(&self, segment: &frame::Tcp) -> bool {
        let seq = Seq(segment.seq);
        let fin = u32::from(segment.flags.has(Flags::FIN));
        let end = seq + u32::try_from(segment.payload_len).expect("a frame is at most 64 KiB") + fin;
        let (next, edge) = (self.up.next, self.up.edge);
        if seq == next || self.in_window(seq) {
            return true;
        }
        if seq == end {
            seq == edge
        } else {
            seq.before(next) && end.after(next)
        }
    }

    /// Sends a challenge acknowledgement (RFC 5961), unless the last one is too recent. If the guest itself, not an
    /// attacker, has sent the segment, the acknowledgement synchronizes the guest's state again.
    ///
    /// The rate limit of RFC 5961 section 7 applies to each connection, because a shared limit is a side channel
    /// (CVE-2016-5696).
    fn challenge<H, T>(&mut self, ctx: &mut Ctx<'_, H, T>) -> Verdict {
        if ctx.now < self.next_challenge {
            ctx.net.counters.tcp_challenges_withheld += 1;
            return Verdict::Ignored;
        }
        self.next_challenge = ctx.now + CHALLENGE_INTERVAL;
        self.challenge_ack(ctx)
    }

    /// Schedules an acknowledgement of everything that was received so far.
    fn challenge_ack<H, T>(&mut self, ctx: &mut Ctx<'_, H, T>) -> Verdict {
        ctx.net.counters.tcp_challenges += 1;
        self.pending.ack = true;
        Verdict::Changed
    }

    /// Completes the handshake: the connection is established.
    fn establish(&mut self, now: Instant) {
        let down = &mut self.down;
        down.una = down.nxt;
        down.rtt.acknowledged(down.nxt, now);
        down.recovery.retry = None;
        self.last_received = now;
        self.state = TcpState::Open;
    }

    /// Handles the guest's answer to the engine's SYN, on a connection of a published port's client.
    fn receive_syn_ack<H, T>(&mut self, segment: &frame::Tcp, ctx: &mut Ctx<'_, H, T>) -> Verdict {
        let flags = segment.flags;
        if flags.has(Flags::ACK) && Seq(segment.ack) != self.down.nxt {
            return if flags.has(Flags::RST) {
                Verdict::Ignored
            } else {
                Verdict::Unacceptable
            };
        }
        match (
            flags.has(Flags::RST),
            flags.has(Flags::SYN),
            flags.has(Flags::ACK),
        ) {
            (true, _, true) => Verdict::Reset,
            (false, true, true) => {
                self.apply_syn(segment, ctx.net.throttle.mtu(ctx.net.mtu));
                self.establish(ctx.now);
                self.pending.ack = true;
                Verdict::Changed
            }
            _ => Verdict::Ignored,
        }
    }

    /// Handles a segment in TIME-WAIT.
    fn receive_late(&mut self, segment: &frame::Tcp) -> Verdict {
        let (seq, flags) = (Seq(segment.seq), segment.flags);
        if flags.has(Flags::RST) {
            return if seq == self.up.next {
                Verdict::Reset
            } else {
                Verdict::Ignored
            };
        }
        // RFC 9293 section 3.10.7.4, "Otherwise, if the TIME-WAIT state": a SYN with a sequence number after the old
        // connection's.
        if flags.has(Flags::SYN) && !flags.has(Flags::ACK) && seq.after(self.up.next) {
            return Verdict::Reopened;
        }
        if segment.payload_len > 0 || flags.has(Flags::FIN) || flags.has(Flags::SYN) {
            self.pending.ack = true;
            return Verdict::Changed;
        }
        Verdict::Ignored
    }

    /// Updates the connection by the acknowledgement and the window of a segment.
    fn receive_ack(&mut self, segment: &frame::Tcp, now: Instant) -> Verdict {
        let (seq, ack) = (Seq(segment.seq), Seq(segment.ack));
        let down = &mut self.down;
        let window = u32::from(segment.window) << down.scale;
        // RFC 9293 does not update the window from an older segment that acknowledges more data; because `una` moves,
        // the window's edge would then exceed what the guest has advertised. The rule here is Linux's
        // (`tcp_may_update_window`), which also accepts a closed window.
        let current = ack.after(down.una)
            || (ack == down.una
                && (down.wl1.before(seq) || (down.wl1 == seq && (window > down.wnd || window == 0))));
        let same_window = window == down.wnd;
        let sack = if down.sack { &segment.options.sack[..] } else { &[] };
        let mut changed = false;
        self.last_received = now;
        down.recovery.unanswered = 0;
        if ack.after(down.una) {
            down.acknowledged(ack, now);
            down.selectively(sack);
            changed = true;
        } else if ack == down.una && down.max.after(down.una) {
            let bare = segment.payload_len == 0 && !segment.flags.has(Flags::FIN) && same_window;
            down.repeated(sack, bare);
            changed = true;
        }
        if current {
            changed |= !same_window;
            if down.wnd == 0 && window > 0 {
                down.reopened();
            }
            down.wnd = window;
            down.max_wnd = down.max_wnd.max(window);
            down.wl1 = seq;
        }
        match changed {
            true => Verdict::Changed,
            false => Verdict::Ignored,
        }
    }
}

/// Minimum time between two challenge acknowledgements: Linux's `tcp_invalid_ratelimit` (since 4.0), half of the
/// shortest timeout of RFC 6298.
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(500);
