//! TCP handshakes of connections that the scripted guest opens or accepts.

use pontoon_engine::Instant;
use pontoon_wire::frame::Flags;

use super::{ConnectionStage, ScriptedConnection, refusal};
use crate::app::{ConnectionEnd, SimApp};
use crate::frames::Segment;
use crate::guest::scripted::receiver::ReceiveHalf;
use crate::streams;

impl ScriptedConnection {
    /// Processes the options and the window of the engine's SYN or SYN-ACK.
    pub(super) fn receive_syn(&mut self, syn: &Segment) {
        self.mss = u64::from(syn.mss.unwrap_or(536).min(self.plan.mss));
        self.scaled = syn.window_scale.is_some() && self.plan.scale.is_some();
        self.shift = if self.scaled {
            syn.window_scale.unwrap_or(0)
        } else {
            0
        };
        self.sack = syn.sack_permitted && self.plan.sack;
        let shift = if self.scaled {
            self.plan.scale.unwrap_or(0)
        } else {
            0
        };
        let stream = streams::down(self.port);
        self.receiver = ReceiveHalf::new(syn.seq.wrapping_add(1), stream, self.plan.receive_buffer, shift);
        self.sender.edge = u64::from(syn.window);
    }

    pub(super) fn receive_syn_ack(
        &mut self,
        segment: &Segment,
        now: Instant,
        output: &mut Vec<Segment>,
        wrong: &mut Vec<String>,
    ) {
        let fits = segment.flags.has(Flags::ACK) && segment.ack == self.iss.wrapping_add(1);
        if segment.flags.has(Flags::RST) {
            if fits {
                self.fail(ConnectionEnd::Refused);
            } else {
                wrong.push(format!(
                    "port {}: a reset that does not fit a SYN: {segment:?}",
                    self.port
                ));
            }
        } else if segment.flags.has(Flags::SYN) && fits {
            self.receive_syn(segment);
            self.open(now);
            self.receiver.open(self.scaled);
            output.push(self.bare(Flags::ACK));
        } else if fits {
            // Data has overtaken the SYN-ACK and is dropped; the engine retransmits it.
        } else {
            output.extend(refusal(segment));
        }
    }

    pub(super) fn open(&mut self, now: Instant) {
        self.stage = ConnectionStage::Open;
        self.app = Some(SimApp::new(self.script.clone(), self.rng.fork(), now));
    }

    pub(super) fn syn(&self, flags: Flags) -> Segment {
        let answers = flags.has(Flags::ACK);
        let window = self.plan.receive_buffer.min(0xffff) as u16;
        let ack = if answers { self.receiver.ack() } else { 0 };
        Segment {
            from: self.local,
            to: self.remote,
            seq: self.iss,
            ack,
            flags,
            window,
            mss: Some(self.plan.mss),
            window_scale: self.plan.scale.filter(|_| !answers || self.scaled),
            sack_permitted: self.plan.sack && (!answers || self.sack),
            ..Segment::EMPTY
        }
    }
}
