//! Data from the host to the guest: sends data from the host socket's receive queue as far as the guest's window
//! permits.
//!
//! A byte stays in the receive queue until the guest acknowledges it. Every transmission and retransmission is a peek
//! that copies directly into link memory.

use arrayvec::ArrayVec;
use pontoon_wire::emit;
use pontoon_wire::frame::Flags;
use pontoon_wire::vnet::{Offload, Segmentation};

use super::Ended;
use super::Sending;
use super::connection::Connection;
use super::recovery::RetryKind;
use super::seq::Seq;
use super::stray::send_head;
use crate::ctx::{Ctx, Net};
use crate::link::{Limits, Room, TransmitError};
use crate::{Failure, FlowId, Host, Instant, Transmit};

/// Number of bytes that a flow may send in one turn before the other flows (deficit round robin).
pub(super) const QUANTUM: u32 = 64 << 10;
/// Maximum number of frames that one peek fills.
const FRAMES: usize = 64;
/// Maximum number of slices that one peek fills: eleven of the largest frames in receive buffers of 1,536 bytes.
const SLICES: usize = 512;
/// Maximum number of bytes in flight if the host cannot peek at an offset, because then each peek copies the bytes in
/// flight once more.
const HEAD_PEEK_LIMIT: u32 = 256 << 10;

/// The result of sending a part of the stream from the host socket's receive queue to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transmission {
    /// `len` bytes were sent; if `drained`, the receive queue contains no more.
    Bytes { len: u32, drained: bool },
    /// The receive queue has no data at this sequence number yet.
    Nothing,
    /// The stream ends at this sequence number.
    End,
    /// The link is full, and the flow waits until it has room.
    Full,
    /// The link has rejected the first segment permanently.
    Rejected,
}

impl<S> Connection<S> {
    /// Returns the headers of a segment that is sent now, with the current acknowledgement number, window and SACK
    /// blocks.
    fn head(
        &mut self,
        net: &Net,
        seq: Seq,
        flags: Flags,
        syn: Option<emit::SynOptions>,
        len: usize,
    ) -> emit::Head {
        // RFC 7323 section 2.2: the window in a segment with SYN is not scaled.
        let scale = self.up.scale;
        if syn.is_some() {
            self.up.scale = 0;
        }
        let window = self.window_field();
        self.up.scale = scale;
        let acks = flags.has(Flags::ACK);
        // A segment with data has no room for SACK blocks; they are sent in segments without data.
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

    /// Sends a segment without data. If the link is full, the flow waits for room.
    pub(super) fn send_bare<H, T: Transmit>(
        &mut self,
        id: FlowId,
        seq: Seq,
        flags: Flags,
        syn: Option<emit::SynOptions>,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Sending {
        let had_ack = self.pending.ack;
        let head = self.head(ctx.net, seq, flags, syn, 0);
        let sending = send_head(&head, ctx);
        if sending == Sending::LinkFull {
            self.pending.ack = had_ack;
            self.park(id, ctx.net);
        }
        sending
    }

    /// Discards the bytes that the guest has acknowledged from the receive queue.
    pub(super) fn discard<H: Host<Socket = S>>(&mut self, host: &mut H) -> Result<(), Ended> {
        let len = core::mem::take(&mut self.down.discard);
        match &mut self.socket {
            Some(socket) if len > 0 => host.tcp_discard(socket, len).map_err(Ended::Failed),
            _ => Ok(()),
        }
    }

    /// Retransmits the ranges that loss recovery has detected as lost.
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

    /// Sends a tail loss probe, which retransmits the last segment. It contains data, because more than one segment is
    /// in flight.
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

    /// Sends new data as far as the guest's window permits, and the FIN behind the last data.
    pub(super) fn fill<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Ended> {
        let limit = match self.peeks_at_offset(ctx.host) {
            true => u32::MAX,
            false => HEAD_PEEK_LIMIT,
        };
        let mut quantum = QUANTUM.max(self.down.mss);
        loop {
            let down = &mut self.down;
            let again = down.data_end().past(down.nxt);
            let fresh = again == 0;
            if fresh && down.eof {
                // If `nxt` is behind the FIN, the FIN is in flight or acknowledged.
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
            // RFC 9293 section 3.8.6.2.1: no small segment is sent while an acknowledgement will open the window.
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
                    // If the last segment had a FIN, `max` is behind the end of the data.
                    let end = from + len;
                    down.nxt = if down.fin == Some(end) && drained {
                        end + 1
                    } else {
                        end
                    };
                    down.max = down.max.latest(down.nxt);
                }
                Transmission::Nothing => {
                    // A peek that begins at the head may end, within the bytes in flight, before the data behind the
                    // urgent mark.
                    self.pending.urgent &= self.down.flight() > 0;
                    self.pending.readable = self.pending.urgent;
                    break;
                }
                Transmission::End => {
                    self.take_error(ctx.host)?;
                    self.pending.readable = false;
                    self.down.eof = true;
                }
                Transmission::Full | Transmission::Rejected => break,
            }
        }
        Ok(())
    }

    /// Returns the error of the host socket if an event has reported one: a peek at the end of the stream returns no
    /// error, and there is no further event.
    fn take_error<H: Host<Socket = S>>(&mut self, host: &mut H) -> Result<(), Ended> {
        match &mut self.socket {
            Some(socket) if self.pending.error => host
                .tcp_error(socket)
                .map_or(Ok(()), |why| Err(Ended::Failed(why))),
            _ => Ok(()),
        }
    }

    /// Adds the flow to the list of ready flows, which continue without an event.
    fn continue_later(&mut self, id: FlowId, net: &mut Net) {
        if !self.pending.queued {
            self.pending.queued = true;
            net.ready.push_back(id);
        }
    }

    /// Adds the flow to the list of flows that continue when the link has room.
    pub(super) fn park(&mut self, id: FlowId, net: &mut Net) {
        if !self.pending.parked {
            self.pending.parked = true;
            match self.up.queries {
                Some(_) => net.parked_first.push(id),
                None => net.parked.push(id),
            }
        }
    }

    fn send_fin<H, T: Transmit>(&mut self, id: FlowId, ctx: &mut Ctx<'_, H, T>) {
        let seq = self.down.nxt;
        let sending = self.send_bare(id, seq, Flags::FIN.and(Flags::ACK), None, ctx);
        if sending == Sending::LinkFull {
            return;
        }
        if self.down.fin.is_some() {
            ctx.net.counters.tcp_retransmits += 1;
        }
        self.down.fin = Some(seq);
        self.down.nxt = seq + 1;
        self.down.max = self.down.max.latest(seq + 1);
    }

    /// Returns the part of `len` bytes that the bandwidth limit permits now, at least one segment. Returns `None` if it
    /// permits none; then the flow waits for bandwidth.
    fn throttled(&mut self, id: FlowId, len: u32, net: &mut Net, now: Instant) -> Option<u32> {
        let permitted = net.throttle.down(now);
        if permitted == 0 {
            net.counters.held_back += 1;
            self.park(id, net);
            return None;
        }
        let permitted = u32::try_from(permitted).unwrap_or(u32::MAX);
        Some(len.min(self.down.whole_segments(permitted).max(self.down.mss)))
    }

    /// Sends up to `len` bytes of the stream from the sequence number `from` on, in segments unless the link segments
    /// them.
    ///
    /// If the remote host has closed its direction and these are the last bytes, the last segment has the FIN flag.
    fn transmit<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        from: Seq,
        len: u32,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<Transmission, Ended> {
        let Some(len) = self.throttled(id, len, ctx.net, ctx.now) else {
            return Ok(Transmission::Full);
        };
        let mss = self.down.mss;
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
        let drained = got < asked && ctx.host.short_peek_is_last(socket);
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
            if let Err(error) = self.commit(id, &mut room, (seq, flags, take), ctx.net) {
                return Ok(match (sent, error) {
                    (0, TransmitError::Full) => Transmission::Full,
                    (0, TransmitError::Rejected) => Transmission::Rejected,
                    (sent, _) => Transmission::Bytes {
                        len: u32::try_from(sent).expect("as above"),
                        drained: false,
                    },
                });
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

    /// Writes the headers of a segment whose data is in the next frame of the reservation, and sends it.
    fn commit(
        &mut self,
        id: FlowId,
        room: &mut impl Room,
        (seq, flags, len): (Seq, Flags, usize),
        net: &mut Net,
    ) -> Result<(), TransmitError> {
        let had_ack = self.pending.ack;
        let head = self.head(net, seq, flags, None, len);
        let offload = Offload {
            checksum: head.checksum,
            segmentation: self.segmentation(len),
        };
        let committed = room.commit(offload, head.bytes(), len);
        match committed {
            Ok(()) => {
                net.counters.frames_down += 1;
                net.throttle.sent_down(head.bytes().len() + len);
            }
            Err(error) => {
                net.counters.link_refused += 1;
                self.pending.ack = had_ack;
                if error == TransmitError::Full {
                    self.park(id, net);
                }
            }
        }
        committed
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

    /// Retransmits, or probes the guest's closed window, if the retransmission timer has expired.
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
        // The guest has closed its window since: the bytes in flight are beyond it, and only a window probe may be
        // sent.
        let kind = if self.down.wnd == 0 {
            RetryKind::Persist
        } else {
            kind
        };
        match kind {
            RetryKind::Probe => {
                self.probe_tail(id, ctx)?;
                self.down.recovery.retry = Some((ctx.now + self.down.rtt.timeout(), RetryKind::Timeout));
            }
            RetryKind::Timeout => {
                if self.down.rtt.backoff >= MOST_TIMEOUTS {
                    return Err(Ended::Failed(Failure::TimedOut));
                }
                ctx.net.counters.tcp_timeouts += 1;
                self.down.go_back();
            }
            RetryKind::Persist => {
                // The guest's window may stay closed for ever, as long as the guest answers probes (RFC 9293 section
                // 3.8.6.1).
                self.down.recovery.unanswered += 1;
                if self.down.recovery.unanswered > MOST_TIMEOUTS {
                    return Err(Ended::Failed(Failure::TimedOut));
                }
                self.down.rtt.backoff = self.down.rtt.backoff.saturating_add(1);
                // A segment with an old sequence number and no data: the guest's answer contains its current window
                // (Linux probes in the same way).
                let seq = self.down.una - 1;
                self.send_bare(id, seq, Flags::ACK, None, ctx);
            }
        }
        Ok(())
    }
}

/// Length in bytes of the Ethernet and TCP headers of a segment with data, which has no TCP options.
const HEAD: usize = 14 + 20;

/// Number of consecutive retransmission timeouts after which the connection is reset: 280 s with the shortest timeout
/// (RFC 9293 section 3.8.3 requires at least 100 s).
const MOST_TIMEOUTS: u8 = 12;

/// Returns the number of data bytes in one frame: one segment, or as many whole segments as fit if the link segments
/// frames.
fn frame_payload(limits: &Limits, mss: u32, v4: bool) -> u32 {
    let (uncut, headers) = if v4 { (limits.tso4, 40) } else { (limits.tso6, 60) };
    let room = u32::try_from(limits.max_gso)
        .unwrap_or(u32::MAX)
        .saturating_sub(headers);
    if uncut { (room / mss).max(1) * mss } else { mss }
}
