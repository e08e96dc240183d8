//! Segments of the scripted guest that well-behaved stacks never or rarely send.

use pontoon_wire::frame::Flags;

use super::{ScriptedConnection, StreamRange};
use crate::frames::{Segment, URG};

/// Probabilities of the scripted guest's deviations from TCP, per mille of the opportunities.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mischief {
    /// Probability that two segments are sent in the wrong order.
    pub swap: u32,
    /// Probability that a retransmission has segment boundaries that overlap earlier segments.
    pub overlap: u32,
    /// Probability that data is sent again that was acknowledged long ago.
    pub stale: u32,
    /// Probability that a segment has URG and an urgent pointer.
    pub urgent: u32,
    /// Probability of a keepalive probe, with or without a random byte.
    pub keepalive: u32,
    /// Probability of a RST inside the window but not at its left edge, which the engine must challenge (RFC 5961
    /// section 3).
    pub inexact_reset: u32,
    /// Probability of a RST outside of the window, which the engine must ignore.
    pub far_reset: u32,
    /// Probability of a SYN on the open connection, which the engine must challenge (RFC 5961 section 4).
    pub syn: u32,
    /// Probability of an acknowledgement of data that was never sent (RFC 5961 section 5).
    pub wild_ack: u32,
    /// Probability of data beyond the engine's window.
    pub beyond: u32,
    /// Probability that data is reported by SACK and then dropped (reneging, RFC 2018 section 8).
    pub renege: u32,
}

impl Mischief {
    /// All deviations, with their default probabilities.
    pub const ALL: Self = Self {
        swap: 50,
        overlap: 300,
        stale: 20,
        urgent: 30,
        keepalive: 20,
        inexact_reset: 50,
        far_reset: 10,
        syn: 10,
        wild_ack: 10,
        beyond: 20,
        renege: 10,
    };
}

impl ScriptedConnection {
    /// Returns a retransmission with other boundaries than the original: it may begin before `piece` and end after
    /// it.
    pub(super) fn overlapped(&mut self, piece: StreamRange) -> StreamRange {
        if piece.from == piece.to || !self.rng.chance(self.plan.mischief.overlap) {
            return piece;
        }
        let from = piece.from - self.rng.within(0..=piece.from.min(self.mss / 2));
        let most = self.sender.next.min(self.sender.written);
        let to = self
            .rng
            .within(piece.from + 1..=most.min(from + self.mss).max(piece.from + 1));
        let fin = self.sender.closed && to == self.sender.written && self.sender.next > to;
        StreamRange { from, to, fin }
    }

    /// Adds deviations to the segments of `output` from the index `begin` on.
    pub(super) fn make_mischief(&mut self, begin: usize, output: &mut Vec<Segment>) {
        let mischief = self.plan.mischief;
        if output.len() > begin + 1 && self.rng.chance(mischief.swap) {
            let at = self.rng.size(begin..=output.len() - 2);
            output.swap(at, at + 1);
        }
        if self.rng.chance(mischief.urgent)
            && let Some(segment) = output[begin..]
                .iter_mut()
                .find(|segment| !segment.payload.is_empty())
        {
            segment.flags = segment.flags.and(URG);
            segment.urgent = self.rng.within(0..=0xffff) as u16;
        }
        let all_acknowledged = self.sender.in_flight() == 0;
        let next = self.sender.seq(self.sender.next);
        if all_acknowledged && self.sender.una > 0 && self.rng.chance(mischief.keepalive) {
            let rubbish = self.rng.chance(500).then_some(0x5a);
            output.push(Segment {
                seq: next.wrapping_sub(1),
                payload: rubbish.into_iter().collect(),
                ..self.bare(Flags::ACK)
            });
        }
        if self.sender.una > 1 && self.rng.chance(mischief.stale) {
            let from = self.rng.within(0..=self.sender.una.min(self.sender.written) - 1);
            let to = (from + self.mss).min(self.sender.una).min(self.sender.written);
            output.push(self.data(StreamRange { from, to, fin: false }));
        }
        // The sequence number is one of which no byte will ever be sent, so that no delay makes the reset exact.
        let sent_all = all_acknowledged && !self.script.echo && self.sender.written == self.script.send;
        let room = self.sender.edge.saturating_sub(self.sender.next);
        if sent_all && room > 4 && self.rng.chance(mischief.inexact_reset) {
            let seq = next.wrapping_add(self.rng.within(2..=room - 2) as u32);
            output.push(Segment {
                seq,
                ..self.bare(Flags::RST)
            });
        }
        if self.rng.chance(mischief.far_reset) {
            let seq = next.wrapping_add(0x4000_0000);
            output.push(Segment {
                seq,
                ..self.bare(Flags::RST)
            });
        }
        if self.rng.chance(mischief.syn) {
            // The number is less than the initial sequence number of the connection, so that a late SYN does not
            // begin a new connection after TIME-WAIT.
            let seq = self.iss.wrapping_sub(self.rng.within(1..=1 << 29) as u32);
            output.push(Segment {
                seq,
                ..self.syn(Flags::SYN)
            });
        }
        if self.rng.chance(mischief.wild_ack) {
            let ack = self.receiver.ack().wrapping_add(0x1000_0000);
            output.push(Segment {
                ack,
                ..self.bare(Flags::ACK)
            });
        }
        if self.rng.chance(mischief.beyond) {
            // The number is beyond the widest window, as the engine may have opened its window meanwhile.
            let seq = self.sender.seq(self.sender.edge).wrapping_add(0x0100_0000);
            let payload = vec![0xee; self.rng.size(1..=self.mss as usize)];
            output.push(Segment {
                seq,
                payload,
                ..self.bare(Flags::ACK)
            });
        }
    }
}
