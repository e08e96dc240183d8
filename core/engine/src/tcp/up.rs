//! Data from the guest to the host: bytes within the advertised window are never dropped.
//!
//! The segments of a burst are sent to the host socket by one gathered `sendmsg`. Bytes that the socket does not accept
//! are copied to the buffer pool, and sent when the socket is writable again. The receive window is the room in the
//! send buffer, or [`FIRST_WINDOW`] if the pool can reserve memory for the difference: a small send buffer would permit
//! no large segments, and the kernel increases the buffer and reports new room only after a refused send
//! (`SOCK_NOSPACE`). Without a reservation the window closes, and the engine requests an event for new room. While the
//! pool contains bytes of the connection, the window's right edge does not move.

use vm_memory::VolatileSlice;

use super::connection::{BLIND_WINDOW, Connection, FIRST_WINDOW, GuestToHost};
use super::proof::Progress;
use super::reorder::Kept;
use super::seq::Seq;
use super::{Burst, Ended};
use crate::ctx::{Ctx, Net};
use crate::dns::stream::Queries;
use crate::pool::Pool;
use crate::{Counters, Failure, FlowId, Frame, Host, Transmit};

/// Maximum receive window in bytes. Throughput does not increase above 2.5 MiB, which Linux permits a loopback sender
/// at once.
pub(super) const WIDEST_WINDOW: u32 = 4 << 20;
/// Maximum payload of a segment in bytes for which the engine treats it as a request: its acknowledgement is delayed,
/// to be sent with the response.
const REQUEST: usize = 4 << 10;
/// Free space in bytes below which the advertised window is 0 instead of a small number.
const HARDLY_ANY: u32 = 4 << 10;

impl<S> Connection<S> {
    /// Accepts data within the receive window: data in order is added to the burst, data out of order is stored in the
    /// reorder buffer.
    pub(super) fn take_data<'a>(
        &mut self,
        slot: u32,
        segment: &pontoon_wire::frame::Tcp,
        frame: &Frame<'a>,
        burst: &mut Burst<'a>,
        net: &mut Net,
    ) {
        let up = &mut self.up;
        let seq = Seq(segment.seq);
        let end = seq + u32::try_from(segment.payload_len).expect("a frame is at most 64 KiB");
        let end = up.fin.map_or(up.edge, |fin| fin.earliest(up.edge)).earliest(end);
        let begin = seq.latest(up.next);
        if !begin.before(end) {
            self.pending.ack = true;
            return;
        }
        let (offset, len) = (
            segment.payload_offset + begin.past(seq) as usize,
            end.past(begin) as usize,
        );
        let parts = frame.range(offset, len);
        if begin == up.next {
            for part in parts {
                burst.parts.push((slot, part));
            }
            up.next = end;
            up.gathered += end.past(begin);
            up.since_growth = up.since_growth.saturating_add(end.past(begin));
            // RFC 9293 section 3.8.6.3: at least every second full segment is acknowledged.
            if self.pending.ack_later || len > REQUEST {
                self.pending.ack = true;
            } else {
                self.pending.ack_later = true;
            }
            return;
        }
        self.pending.ack = true;
        match up.reorder.keep(up.next, begin, parts, &mut net.pool) {
            Kept::Yes => net.counters.tcp_out_of_order += 1,
            Kept::PoolEmpty => net.counters.tcp_pool_empty += 1,
            Kept::No => {}
        }
    }

    /// Sends the received data to the host socket: first the bytes in the buffer pool, then the burst, then data from
    /// the reorder buffer, then the end of the stream.
    pub(super) fn flush_to_host<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        parts: &[VolatileSlice<'_>],
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Ended> {
        if self.proof.is_some() && self.prove(id, parts, ctx)? == Progress::Unproven {
            return Ok(());
        }
        let Some(socket) = &mut self.socket else {
            return Ok(());
        };
        let up = &mut self.up;
        let pool = &mut ctx.net.pool;
        while self.pending.writable
            && let Some(front) = up.spill.front(pool)
        {
            match send(&mut up.queries, ctx.host, &mut ctx.net.counters, socket, &[front]) {
                Ok(sent) => up.spill.pop(sent, pool),
                Err(Failure::WouldBlock) => self.pending.writable = false,
                Err(failure) => return Err(Ended::Failed(failure)),
            }
        }
        let gathered = core::mem::take(&mut up.gathered);
        if gathered > 0 {
            // Room that an earlier event has reported may be used up by now.
            self.pending.writable = false;
            let mut sent = 0;
            if up.spill.is_empty() {
                sent = match send(&mut up.queries, ctx.host, &mut ctx.net.counters, socket, parts) {
                    Ok(sent) => sent,
                    Err(Failure::WouldBlock) => 0,
                    Err(failure) => return Err(Ended::Failed(failure)),
                };
            }
            let refused = gathered as usize - sent;
            if refused > 0 {
                let spilled = up.spill(parts, sent, pool);
                ctx.net.counters.tcp_spilled_bytes += spilled as u64;
                if spilled < refused {
                    // The exception to the rule that no byte within the window is dropped: the pool is exhausted, so
                    // these bytes count as never received. Data in the reorder buffer is stored relative to `next`, and
                    // is dropped, too.
                    up.next = up.next - u32::try_from(refused - spilled).expect("part of a burst");
                    up.reorder.clear(pool);
                    ctx.net.counters.tcp_pool_empty += 1;
                }
            }
        }
        up.reorder.advance(up.next, pool);
        while up.spill.is_empty()
            && let Some(front) = up.reorder.front(up.next, pool)
        {
            match send(&mut up.queries, ctx.host, &mut ctx.net.counters, socket, &[front]) {
                Ok(sent) => {
                    up.next += u32::try_from(sent).expect("at most a block");
                    up.reorder.advance(up.next, pool);
                    self.pending.ack = true;
                }
                Err(Failure::WouldBlock) => break,
                Err(failure) => return Err(Ended::Failed(failure)),
            }
        }
        if up.fin == Some(up.next) && up.spill.is_empty() {
            // If both directions have ended, the socket is closed instead, which also sends the FIN.
            if !self.down.closed {
                ctx.host.tcp_shutdown(socket).map_err(Ended::Failed)?;
            }
            up.next += 1;
            up.closed = true;
            self.pending.ack = true;
            self.active_close = self.down.fin.is_some();
        }
        Ok(())
    }

    /// Moves the right edge of the receive window, and schedules a window update if the window opens by enough.
    pub(super) fn update_window<H: Host<Socket = S>>(&mut self, id: FlowId, host: &mut H, net: &mut Net) {
        let Some(socket) = &mut self.socket else { return };
        let up = &mut self.up;
        if up.closed || !up.spill.is_empty() || self.proof.as_ref().is_some_and(|proof| proof.is_unproven()) {
            return;
        }
        // The room in the send buffer is read by a system call, which is made only when half of the window is used.
        let window = if up.limit == FIRST_WINDOW {
            BLIND_WINDOW
        } else {
            up.limit
        };
        if up.want.past(up.next) > window / 2 {
            return;
        }
        if up.since_growth >= up.limit && up.limit < WIDEST_WINDOW && net.pool.is_roomy() {
            up.limit *= 2;
            up.since_growth = 0;
        }
        if let Some(promise) = up.promise.take() {
            net.pool.release(promise);
        }
        let mut target = host.tcp_send_room(socket).min(up.limit);
        if target < FIRST_WINDOW {
            up.promise = net.pool.promise();
            if up.promise.is_some() {
                target = FIRST_WINDOW;
            } else if target < HARDLY_ANY && !self.pending.writable {
                target = 0;
                // Each request makes the host report all pending events of the socket once more.
                if !core::mem::replace(&mut self.pending.watching, true) {
                    host.tcp_watch_room(id, socket);
                }
            }
        }
        up.want = up.want.latest(up.next + target);
        // RFC 9293 section 3.8.6.2.2: a window update is sent only if it opens a considerable part of the window.
        if up.edge.past(up.next) < target / 2 {
            self.pending.ack = true;
        }
    }

    /// Returns the window field for a segment that is sent now, and records the advertised right edge.
    pub(super) fn window_field(&mut self) -> u16 {
        let up = &mut self.up;
        let step = 1_u32 << up.scale;
        let window = up.want.latest(up.edge).past(up.next);
        let steps = match &self.proof {
            // The edge must not move, because the memory for the data is limited.
            Some(proof) if proof.is_unproven() => window / step,
            // Rounded up, because rounding down would move the right edge back by a fraction of a step (RFC 7323 section
            // 2.4).
            Some(_) | None => window.div_ceil(step),
        };
        let field = steps.min(u32::from(u16::MAX));
        up.edge = up.edge.latest(up.next + field * step);
        u16::try_from(field).expect("limited above")
    }
}

impl GuestToHost {
    /// Copies the bytes of a burst behind the first `sent`, which the socket has not accepted, to the buffer pool.
    /// Returns the number of bytes copied, which is smaller if the pool is exhausted.
    fn spill(&mut self, parts: &[VolatileSlice<'_>], sent: usize, pool: &mut Pool) -> usize {
        let mut skip = sent;
        let mut spilled = 0;
        for part in parts {
            let begin = skip.min(part.len());
            skip -= begin;
            let rest = part.offset(begin).expect("begin is within the part");
            let taken = self.spill.push(rest, &mut self.promise, pool);
            spilled += taken;
            if taken < rest.len() {
                break;
            }
        }
        spilled
    }
}

/// Sends `parts` to the host socket; on a connection to the DNS forwarder, only as far as they consist of queries.
fn send<H: Host>(
    queries: &mut Option<Queries>,
    host: &mut H,
    counters: &mut Counters,
    socket: &mut H::Socket,
    parts: &[VolatileSlice<'_>],
) -> Result<usize, Failure> {
    match queries {
        None => host.tcp_send(socket, parts),
        Some(queries) => queries.send(host, counters, socket, parts),
    }
}
