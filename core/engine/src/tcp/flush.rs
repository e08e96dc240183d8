//! Performs the pending work of a connection, which segments, socket events and timers have recorded.

use pontoon_wire::frame::Flags;
use vm_memory::VolatileSlice;

use super::Ended;
use super::Sending;
use super::connection::{Connection, TcpState};
use super::stray;
use crate::ctx::{Ctx, Net};
use crate::{FlowId, Host, Transmit};

impl<S> Connection<S> {
    /// Sends a reset to the guest, without a change of the connection.
    pub(super) fn send_reset<H, T: Transmit>(&self, ctx: &mut Ctx<'_, H, T>) -> Sending {
        // The sequence number is within the guest's window, because a reset elsewhere is ignored (RFC 9293 section
        // 3.10.7.4). After a retransmission timeout, `nxt` is before the highest sequence number sent.
        let seq = match self.state {
            TcpState::Open => self.down.acceptable(),
            _ => self.down.nxt.latest(self.down.max),
        };
        let flags = Flags::RST.and(Flags::ACK);
        stray::send_reset(&self.key, seq.0, self.up.next.0, flags, ctx)
    }

    /// Performs all pending work: delivers data to the host, discards, retransmits, fills the guest's window,
    /// acknowledges.
    pub(super) fn flush<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        parts: &[VolatileSlice<'_>],
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Ended> {
        self.pending.dirty = false;
        match self.state {
            TcpState::Connecting { .. } | TcpState::Failed => return Ok(()),
            TcpState::SynReceived | TcpState::SynSent => {
                if self.pending.handshake {
                    self.send_handshake(id, ctx);
                    return Ok(());
                }
            }
            TcpState::Open => {
                let is_answered = self.down.discard > 0;
                self.flush_to_host(id, parts, ctx)?;
                if let Some(queries) = &mut self.up.queries {
                    queries.note_messages(is_answered, ctx.now);
                }
                self.discard(ctx.host)?;
                self.update_window(id, ctx.host, ctx.net);
                if !self.is_unproven() {
                    self.down.detect_loss();
                    self.resend(id, ctx)?;
                    self.fill(id, ctx)?;
                }
                self.account();
            }
            TcpState::TimeWait { .. } => {}
        }
        if self.pending.ack {
            let seq = match self.state {
                TcpState::Open => self.down.acceptable(),
                _ => self.down.max,
            };
            self.send_bare(id, seq, Flags::ACK, None, ctx);
        } else if self.pending.ack_later && !self.pending.ack_is_delayed {
            self.pending.ack_is_delayed = true;
            ctx.net.delay_ack(id, ctx.now);
        }
        if self.state == TcpState::Open && self.up.closed && self.down.closed {
            return Err(Ended::Closed);
        }
        Ok(())
    }

    /// Arms the connection's timer for its next deadline.
    pub(super) fn arm<H, T>(&mut self, id: FlowId, ctx: &mut Ctx<'_, H, T>) {
        let at = match self.state {
            TcpState::Connecting { give_up } => give_up,
            TcpState::TimeWait { until } => Some(until),
            TcpState::Failed => None,
            TcpState::SynReceived | TcpState::SynSent => self.down.recovery.retry.map(|(at, _)| at),
            TcpState::Open => {
                // Behind the end of the stream there is nothing to read, even if an event has reported the socket as
                // readable.
                let unsent = match self.down.eof {
                    _ if self.is_unproven() => false,
                    true => self.down.fin.is_none(),
                    false => self.pending.readable,
                };
                self.down.arm_retry(unsent, ctx.now);
                let at = match self.down.recovery.retry {
                    Some((at, _)) => at,
                    None => self.idle_deadline(),
                };
                let earlier = self.dns_deadline().or_else(|| self.proof_deadline());
                Some(earlier.map_or(at, |earlier| earlier.min(at)))
            }
        };
        if let Some(at) = at {
            ctx.net.timers.arm(&mut self.timer, id, at);
        }
    }

    /// Returns the connection's blocks to the buffer pool.
    pub(super) fn release(&mut self, net: &mut Net) {
        self.count_held(0, net);
        if let Some(proof) = &mut self.proof {
            proof.end(net);
        }
        let pool = &mut net.pool;
        self.up.spill.clear(pool);
        if let Some(promise) = self.up.promise.take() {
            pool.release(promise);
        }
        self.up.reorder.clear(pool);
    }
}
