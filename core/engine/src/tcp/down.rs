//! Host to guest: the guest's window is filled from the socket's receive queue.
//!
//! A byte stays in that queue until the guest acknowledges it, so every send, first or repeated, is a peek straight
//! into link memory.

use arrayvec::ArrayVec;
use pontoon_wire::emit;
use pontoon_wire::frame::Flags;
use pontoon_wire::vnet::{Offload, Segmentation};

use super::Ended;
use super::connection::Connection;
use super::recovery::Retry;
use super::seq::Seq;
use crate::ctx::{Ctx, Net};
use crate::link::{Limits, Room, TransmitError};
use crate::{Failure, FlowId, Host, Transmit};

/// The bytes that one flow may send in a turn before the others have theirs (deficit round robin).
pub(super) const QUANTUM: u32 = 64 << 10;
/// Frames filled by one peek.
const FRAMES: usize = 64;
/// Slices filled by one peek: eleven of the largest frames in receive buffers of 1,536 bytes.
const SLICES: usize = 512;
/// In flight at most where the host cannot peek at an offset: each peek copies what is in flight once more.
const HEAD_PEEK_LIMIT: u32 = 256 << 10;

/// The result of a transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transmission {
    /// This many bytes left; `drained`: the queue had no more.
    Bytes { len: u32, drained: bool },
    /// The queue has nothing there.
    Nothing,
    /// The queue ends there.
    End,
    /// The link has no room: to be continued when it has.
    Full,
    /// The link took nothing and will not soon.
    Rejected,
}

impl<S> Connection<S> {
    /// Headers of a segment that leaves now; they tell the guest everything that it has not been told.
    fn head(&mut self, net: &Net, seq: Seq, flags: Flags, syn: Option<emit::Syn>, len: usize) -> emit::Head {
        // RFC 7323 section 2.2: the window of a segment with SYN is never scaled.
        let scale = self.up.scale;
        if syn.is_some() {
            self.up.scale = 0;
        }
        let window = self.window_field();
        self.up.scale = scale;
        let acks = flags.has(Flags::ACK);
        // A full segment has no room for SACK blocks: they go in one of their own.
        let sack = if len == 0 {
            self.sack_blocks()
        } else {
            ArrayVec::new()
        };
        let head = emit::tcp(
            net.ether(),
            super::ip(self.key.remote, self.key.guest),
            emit::TcpFields {
                source_port: self.key.remote.port(),
                destination_port: self.key.guest.port(),
                seq: seq.0,
                ack: if acks { self.up.next.0 } else { 0 },
                flags,
                window,
                syn,
                sack: &sack,
            },
            len,
        );
        if acks && (len == 0 || self.up.reorder.is_empty()) {
            self.pending.ack = false;
            self.pending.ack_later = false;
        }
        head
    }

    /// Sends a segment without data. False: the link has no room, try again when it has.
    pub(super) fn send_bare<H, T: Transmit>(
        &mut self,
        id: FlowId,
        seq: Seq,
        flags: Flags,
        syn: Option<emit::Syn>,
        ctx: &mut Ctx<'_, H, T>,
    ) -> bool {
        let had_ack = self.pending.ack;
        let head = self.head(ctx.net, seq, flags, syn, 0);
        let offload = Offload {
            checksum: head.checksum,
            segmentation: Segmentation::Whole,
        };
        match ctx.link.send(offload, head.bytes(), &[]) {
            Ok(()) => ctx.net.counters.frames_down += 1,
            Err(refused) => {
                ctx.net.counters.link_refused += 1;
                if refused == TransmitError::Full {
                    self.pending.ack = had_ack;
                    self.park(id, ctx.net);
                    return false;
                }
            }
        }
        true
    }

    /// Drops from the queue what the guest has acknowledged.
    pub(super) fn discard<H: Host<Socket = S>>(&mut self, host: &mut H) -> Result<(), Ended> {
        let len = core::mem::take(&mut self.down.discard);
        match &mut self.socket {
            Some(socket) if len > 0 => host.tcp_discard(socket, len).map_err(Ended::Failed),
            _ => Ok(()),
        }
    }

    /// Sends again what the guest is missing.
    pub(super) fn resend<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Ended> {
        let mut quantum = QUANTUM.max(self.down.mss);
        while let Some((from, len)) = self.down.lost() {
            if quantum < self.down.mss {
                self.continue_later(id, ctx.net);
                break;
            }
            match self.transmit(id, from, len.min(self.down.whole_segments(quantum)), ctx)? {
                Transmission::Bytes { len, .. } => {
                    self.down.sent_again(from, len);
                    ctx.net.counters.tcp_retransmits += 1;
                    quantum = quantum.saturating_sub(len);
                }
                Transmission::Nothing | Transmission::End | Transmission::Full | Transmission::Rejected => {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Sends the tail again: more than a segment is in flight, so it has data.
    pub(super) fn probe_tail<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Ended> {
        ctx.net.counters.tcp_retransmits += 1;
        self.down.rtt.resent();
        self.down.recovery.probed = true;
        let end = self.down.data_end();
        let len = end.past(self.down.una).min(self.down.mss);
        self.transmit(id, end - len, len, ctx).map(drop)
    }

    /// Fills the guest's window.
    pub(super) fn fill<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Ended> {
        let limit = match ctx.host.peeks_at_offset(self.key.remote.ip()) {
            true => u32::MAX,
            false => HEAD_PEEK_LIMIT,
        };
        let mut quantum = QUANTUM.max(self.down.mss);
        loop {
            let down = &mut self.down;
            let again = down.data_end().past(down.nxt);
            let fresh = again == 0;
            if fresh && down.eof {
                // A FIN is in flight, or acknowledged, once `nxt` is past it.
                if down.fin.is_none_or(|fin| down.nxt == fin) {
                    self.send_fin(id, ctx);
                }
                break;
            }
            if fresh && !self.pending.readable {
                break;
            }
            let flight = down.flight();
            let window = down.wnd.min(down.recovery.cwnd).min(limit);
            let mut room = window.saturating_sub(flight);
            if !fresh {
                room = room.min(again);
            }
            // RFC 9293 section 3.8.6.2.1: no small segments while an acknowledgement will open the window.
            if room == 0 || (fresh && flight > 0 && room < down.mss && room < down.max_wnd / 2) {
                break;
            }
            if quantum < down.mss {
                self.continue_later(id, ctx.net);
                break;
            }
            let from = down.nxt;
            match self.transmit(id, from, room.min(self.down.whole_segments(quantum)), ctx)? {
                Transmission::Bytes { len, drained } => {
                    quantum = quantum.saturating_sub(len);
                    let down = &mut self.down;
                    if fresh {
                        down.rtt.sent(down.nxt + len, ctx.now);
                        self.pending.readable &= !drained || self.pending.error || self.pending.urgent;
                    } else {
                        ctx.net.counters.tcp_retransmits += 1;
                    }
                    // A FIN that left with the data has moved `max` past the data's end.
                    let end = from + len;
                    down.nxt = if down.fin == Some(end) && drained {
                        end + 1
                    } else {
                        end
                    };
                    down.max = down.max.latest(down.nxt);
                }
                Transmission::Nothing => {
                    // What is in flight may hide what is behind the urgent mark, where a peek begins at the head.
                    self.pending.urgent &= self.down.flight() > 0;
                    self.pending.readable = self.pending.urgent;
                    break;
                }
                Transmission::End => {
                    // A reset behind the end is told by no peek, and by no other event.
                    let error = |socket| ctx.host.tcp_error(socket);
                    if let Some(failure) = self
                        .socket
                        .as_mut()
                        .filter(|_| self.pending.error)
                        .and_then(error)
                    {
                        return Err(Ended::Failed(failure));
                    }
                    self.pending.readable = false;
                    self.down.eof = true;
                }
                Transmission::Full | Transmission::Rejected => break,
            }
        }
        Ok(())
    }

    /// Another turn for this flow without waiting for the world.
    fn continue_later(&mut self, id: FlowId, net: &mut Net) {
        if !self.pending.queued {
            self.pending.queued = true;
            net.ready.push_back(id);
        }
    }

    /// Another turn when the link has room.
    pub(super) fn park(&mut self, id: FlowId, net: &mut Net) {
        if !self.pending.parked {
            self.pending.parked = true;
            net.parked.push(id);
        }
    }

    fn send_fin<H, T: Transmit>(&mut self, id: FlowId, ctx: &mut Ctx<'_, H, T>) {
        let seq = self.down.nxt;
        if !self.send_bare(id, seq, Flags::FIN.and(Flags::ACK), None, ctx) {
            return;
        }
        if self.down.fin.is_some() {
            ctx.net.counters.tcp_retransmits += 1;
        }
        self.down.fin = Some(seq);
        self.down.nxt = seq + 1;
        self.down.max = self.down.max.latest(seq + 1);
    }

    /// Sends up to `len` bytes of the stream from `from` on, cut or left whole as the link can.
    ///
    /// When the peer has closed and the bytes are the last, the FIN goes with them.
    fn transmit<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        from: Seq,
        len: u32,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<Transmission, Ended> {
        let mss = self.down.mss;
        let len = match ctx.net.throttle.down(ctx.now) {
            0 => {
                ctx.net.counters.held_back += 1;
                self.park(id, ctx.net);
                return Ok(Transmission::Full);
            }
            bytes => len.min(
                self.down
                    .whole_segments(u32::try_from(bytes).unwrap_or(u32::MAX))
                    .max(mss),
            ),
        };
        let frame = frame_payload(&ctx.link.limits(), mss, self.key.guest.is_ipv4()).min(len);
        let frames = (len.div_ceil(frame) as usize).min(FRAMES);
        let head = HEAD + if self.key.guest.is_ipv4() { 20 } else { 40 };
        let Some(mut room) = ctx.link.reserve(frames, head, frame as usize) else {
            self.park(id, ctx.net);
            return Ok(Transmission::Full);
        };
        let mut asked = 0;
        let mut slices = ArrayVec::<_, SLICES>::new();
        for slice in room.payloads().iter().take(SLICES) {
            let take = slice.len().min(len as usize - asked);
            if take == 0 {
                break;
            }
            slices.push(slice.subslice(0, take).expect("take is within the slice"));
            asked += take;
        }
        let Some(socket) = self.socket.as_mut() else {
            return Ok(Transmission::Nothing);
        };
        let got = match ctx.host.tcp_peek(socket, from.past(self.down.una), &slices) {
            Ok(0) => return Ok(Transmission::End),
            Ok(got) => got,
            Err(Failure::WouldBlock) => return Ok(Transmission::Nothing),
            Err(failure) => return Err(Ended::Failed(failure)),
        };
        drop(slices);
        let drained = got < asked;
        let last = self.pending.end
            && drained
            && !self.pending.urgent
            && self.down.fin.is_none()
            && !from.before(self.down.max);
        let mut sent = 0;
        while sent < got {
            let take = (got - sent).min(frame as usize);
            let mut flags = Flags::ACK;
            if sent + take == got {
                flags = flags.and(Flags::PSH);
                if last {
                    flags = flags.and(Flags::FIN);
                }
            }
            let seq = from + u32::try_from(sent).expect("within the window");
            let had_ack = self.pending.ack;
            let head = self.head(ctx.net, seq, flags, None, take);
            let offload = Offload {
                checksum: head.checksum,
                segmentation: self.segmentation(take),
            };
            match room.commit(offload, head.bytes(), take) {
                Ok(()) => {
                    ctx.net.counters.frames_down += 1;
                    ctx.net.throttle.sent_down(head.bytes().len() + take, ctx.now);
                }
                Err(refused) => {
                    ctx.net.counters.link_refused += 1;
                    self.pending.ack = had_ack;
                    if refused == TransmitError::Full {
                        self.park(id, ctx.net);
                    }
                    return Ok(match (sent, refused) {
                        (0, TransmitError::Full) => Transmission::Full,
                        (0, TransmitError::Rejected) => Transmission::Rejected,
                        (sent, _) => Transmission::Bytes {
                            len: u32::try_from(sent).expect("as above"),
                            drained: false,
                        },
                    });
                }
            }
            sent += take;
        }
        let len = u32::try_from(got).expect("within the window");
        if last {
            self.down.eof = true;
            self.down.fin = Some(from + len);
        }
        Ok(Transmission::Bytes { len, drained })
    }

    fn segmentation(&self, len: usize) -> Segmentation {
        match u16::try_from(self.down.mss) {
            Ok(mss) if len > usize::from(mss) => match self.key.guest.is_ipv4() {
                true => Segmentation::Tcp4 { mss },
                false => Segmentation::Tcp6 { mss },
            },
            _ => Segmentation::Whole,
        }
    }

    /// Serves the retry that is due.
    pub(super) fn retry<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Ended> {
        let Some((at, kind)) = self.down.recovery.retry else {
            return Ok(());
        };
        if ctx.now < at {
            return Ok(());
        }
        self.down.recovery.retry = None;
        // What is in flight lies beyond a window that the guest has shut since: nothing may be sent but a probe.
        let kind = if self.down.wnd == 0 { Retry::Persist } else { kind };
        match kind {
            Retry::Probe => {
                self.probe_tail(id, ctx)?;
                self.down.recovery.retry = Some((ctx.now + self.down.rtt.timeout(), Retry::Timeout));
            }
            Retry::Timeout => {
                if self.down.rtt.backoff >= MOST_TIMEOUTS {
                    return Err(Ended::Failed(Failure::TimedOut));
                }
                ctx.net.counters.tcp_timeouts += 1;
                self.down.go_back();
            }
            Retry::Persist => {
                // A shut window may stay shut for ever, as long as the guest answers probes (RFC 9293 section 3.8.6.1).
                self.down.recovery.unanswered += 1;
                if self.down.recovery.unanswered > MOST_TIMEOUTS {
                    return Err(Ended::Failed(Failure::TimedOut));
                }
                self.down.rtt.backoff = self.down.rtt.backoff.saturating_add(1);
                // An old byte that carries nothing: whatever the window is now, the answer tells (Linux probes so too).
                let seq = self.down.una - 1;
                self.send_bare(id, seq, Flags::ACK, None, ctx);
            }
        }
        Ok(())
    }
}

/// Bytes of the Ethernet and TCP headers of a segment with data, which has no options.
const HEAD: usize = 14 + 20;

/// Timeouts in a row after which the guest is taken for gone: with the shortest timeout this is after 280 s (RFC 9293
/// section 3.8.3 asks for at least 100 s).
const MOST_TIMEOUTS: u8 = 12;

/// Data bytes that one frame may carry: one segment, or as many whole ones as fit where the link cuts for us.
fn frame_payload(limits: &Limits, mss: u32, v4: bool) -> u32 {
    let (uncut, headers) = if v4 { (limits.tso4, 40) } else { (limits.tso6, 60) };
    let room = u32::try_from(limits.max_gso)
        .unwrap_or(u32::MAX)
        .saturating_sub(headers);
    if uncut { (room / mss).max(1) * mss } else { mss }
}
