//! One TCP connection of the scripted guest: its state, segments and timers.

mod handshake;
mod mischief;

use core::net::SocketAddr;
use core::time::Duration;

use pontoon_engine::Instant;
use pontoon_wire::frame::Flags;

use super::receiver::{ReceiveHalf, ReceiveResult};
use super::sender::{SendHalf, StreamRange};
use super::{GuestCall, GuestListener, ScriptedPlan, refusal};
use crate::app::{AppAction, ConnectionEnd, Script, SimApp};
use crate::clock::earlier;
use crate::frames::Segment;
use crate::pattern;
use crate::rng::Rng;
use crate::streams;

pub use mischief::Mischief;

/// The guest's end of one TCP connection.
#[derive(Debug)]
pub(super) struct ScriptedConnection {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    port: u16,
    script: Script,
    plan: ScriptedPlan,
    rng: Rng,
    iss: u32,
    stage: ConnectionStage,
    app: Option<SimApp>,
    sender: SendHalf,
    receiver: ReceiveHalf,
    /// Maximum segment size of the engine's SYN, limited by the guest's.
    mss: u64,
    /// Window scale that the engine has offered.
    shift: u8,
    /// True if both sides have offered a window scale.
    scaled: bool,
    /// True if both sides have offered SACK.
    sack: bool,
    /// Time at which a delayed acknowledgement is due.
    ack_at: Option<Instant>,
    /// Number of received segments without an acknowledgement yet.
    unacked: u32,
    outcome: Option<ConnectionEnd>,
    /// Number of resets that were not accepted because of their sequence number (RFC 5961 section 3).
    resets_ignored: u32,
}

/// State of the connection, without the distinctions that its sender and receiver make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStage {
    /// The connection has not begun; the guest sends its SYN at this time.
    Waiting(Instant),
    /// The SYN was sent and is retransmitted at `again`.
    SynSent {
        again: Instant,
        tries: u32,
    },
    SynReceived {
        again: Instant,
        tries: u32,
    },
    Open,
    /// Both directions are closed, in order.
    Closed,
    /// Either side has reset the connection.
    Reset,
}

impl ScriptedConnection {
    pub(super) fn calling(plan: &ScriptedPlan, local: SocketAddr, call: GuestCall, rng: Rng) -> Self {
        Self::new(
            plan,
            local,
            call.to,
            call.to.port(),
            call.script,
            ConnectionStage::Waiting(call.at),
            rng,
        )
    }

    pub(super) fn accepting(plan: &ScriptedPlan, listener: GuestListener, syn: &Segment, rng: Rng) -> Self {
        let stage = ConnectionStage::SynReceived {
            again: Instant(0),
            tries: 0,
        };
        let mut peer = Self::new(plan, syn.to, syn.from, listener.port, listener.script, stage, rng);
        peer.receive_syn(syn);
        // The window of a segment with SYN is not scaled.
        peer.receiver.open(false);
        peer
    }

    fn new(
        plan: &ScriptedPlan,
        local: SocketAddr,
        remote: SocketAddr,
        port: u16,
        script: Script,
        stage: ConnectionStage,
        rng: Rng,
    ) -> Self {
        Self {
            local,
            remote,
            port,
            script,
            plan: plan.clone(),
            rng,
            iss: plan.iss,
            stage,
            app: None,
            sender: SendHalf::new(plan.iss.wrapping_add(1)),
            receiver: ReceiveHalf::new(0, 0, 0, 0),
            mss: 536,
            shift: 0,
            scaled: false,
            sack: false,
            ack_at: None,
            unacked: 0,
            outcome: None,
            resets_ignored: 0,
        }
    }

    pub(super) fn began(&self) -> bool {
        !matches!(self.stage, ConnectionStage::Waiting(_))
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn app(&self) -> Option<&SimApp> {
        self.app.as_ref()
    }

    pub(super) fn outcome(&self) -> Option<ConnectionEnd> {
        self.outcome.or(self.app.as_ref().and_then(SimApp::outcome))
    }

    pub(super) fn resets_ignored(&self) -> u32 {
        self.resets_ignored
    }

    /// Processes a segment of this connection.
    pub(super) fn receive(
        &mut self,
        segment: &Segment,
        now: Instant,
        output: &mut Vec<Segment>,
        wrong: &mut Vec<String>,
    ) {
        match self.stage {
            ConnectionStage::Waiting(_) => {}
            ConnectionStage::SynSent { .. } => self.receive_syn_ack(segment, now, output, wrong),
            ConnectionStage::SynReceived { tries, .. } => {
                if segment.flags.has(Flags::RST) {
                    // The segment arrives before the guest has sent its SYN, so the connection fails.
                    self.fail(ConnectionEnd::Refused);
                } else if segment.flags.has(Flags::SYN) {
                    self.stage = ConnectionStage::SynReceived { again: now, tries };
                } else if segment.flags.has(Flags::ACK) && segment.ack == self.iss.wrapping_add(1) {
                    self.open(now);
                    self.receive_open(segment, now, output, wrong);
                }
            }
            ConnectionStage::Open => self.receive_open(segment, now, output, wrong),
            ConnectionStage::Closed => {
                // TIME-WAIT: a repeated segment is acknowledged again.
                if !segment.flags.has(Flags::RST) && segment.span() > 0 {
                    output.push(self.bare(Flags::ACK));
                }
            }
            ConnectionStage::Reset => output.extend(refusal(segment)),
        }
    }

    fn receive_open(
        &mut self,
        segment: &Segment,
        now: Instant,
        output: &mut Vec<Segment>,
        wrong: &mut Vec<String>,
    ) {
        if segment.flags.has(Flags::RST) {
            // RFC 5961 section 3: a reset is accepted only at the left edge of the window.
            if segment.seq == self.receiver.ack() {
                self.fail(ConnectionEnd::Reset);
            } else {
                self.resets_ignored += 1;
                output.push(self.bare(Flags::ACK));
            }
            return;
        }
        if segment.flags.has(Flags::SYN) {
            // The acknowledgement that completes the handshake was lost.
            output.push(self.bare(Flags::ACK));
            return;
        }
        if !segment.flags.has(Flags::ACK) {
            return wrong.push(format!("port {}: no ACK in {segment:?}", self.port));
        }
        let window = u64::from(segment.window) << self.shift;
        let bare = segment.span() == 0;
        let acknowledged = self
            .sender
            .acknowledged(segment.ack, window, &segment.sack, bare, now);
        let fin = segment.flags.has(Flags::FIN);
        if segment.payload.len() as u64 > self.most_payload() {
            wrong.push(format!(
                "port {}: {} bytes to an MSS of {}",
                self.port,
                segment.payload.len(),
                self.plan.mss
            ));
        }
        // A keepalive or window probe repeats the sequence number of an acknowledged byte, with or without that byte.
        let probe = bare && self.receiver.offset(segment.seq) < self.receiver.next as i64;
        let took = self.receiver.take(segment.seq, &segment.payload, fin);
        for error in [acknowledged.err(), took.as_ref().err().cloned()]
            .into_iter()
            .flatten()
        {
            wrong.push(format!("port {}: {error}: {segment:?}", self.port));
        }
        match took {
            Ok(ReceiveResult::AtOnce) => self.ack_at = Some(now),
            Ok(ReceiveResult::InOrder) => {
                self.unacked += 1;
                let delay = if self.plan.quick_ack || self.unacked >= 2 {
                    Duration::ZERO
                } else {
                    DELAYED_ACK
                };
                self.ack_at = earlier(self.ack_at, Some(now + delay));
            }
            Ok(ReceiveResult::Nothing) if probe => self.ack_at = Some(now),
            Ok(ReceiveResult::Nothing) | Err(_) => {}
        }
        if self.receiver.has_gap() && self.rng.chance(self.plan.mischief.renege) {
            self.receiver.renege();
        }
    }

    /// Returns the length of the largest segment that may be sent: the guest's card may have merged several (TSO).
    fn most_payload(&self) -> u64 {
        u64::from(self.plan.mss) * 16
    }

    fn fail(&mut self, outcome: ConnectionEnd) {
        self.stage = ConnectionStage::Reset;
        match &mut self.app {
            Some(app) => app.was_reset(outcome),
            None => self.outcome = Some(outcome),
        }
    }

    /// Runs the application, and sends the segments that are due at `now`.
    pub(super) fn poll(&mut self, now: Instant, output: &mut Vec<Segment>) {
        match self.stage {
            ConnectionStage::Waiting(at) if at <= now => {
                output.push(self.syn(Flags::SYN));
                self.stage = ConnectionStage::SynSent {
                    again: now + SYN_AGAIN,
                    tries: 1,
                };
            }
            ConnectionStage::SynSent { again, tries } if again <= now => {
                output.push(self.syn(Flags::SYN));
                self.stage = ConnectionStage::SynSent {
                    again: now + SYN_AGAIN * 2_u32.pow(tries.min(6)),
                    tries: tries + 1,
                };
            }
            ConnectionStage::SynReceived { again, tries } if again <= now => {
                output.push(self.syn(Flags::SYN.and(Flags::ACK)));
                self.stage = ConnectionStage::SynReceived {
                    again: now + SYN_AGAIN * 2_u32.pow(tries.min(6)),
                    tries: tries + 1,
                };
            }
            ConnectionStage::Open => self.poll_open(now, output),
            ConnectionStage::Closed => {
                // The FIN was sent but the application may still be reading, so it is not reset.
                self.run_app(now);
            }
            ConnectionStage::Waiting(_)
            | ConnectionStage::SynSent { .. }
            | ConnectionStage::SynReceived { .. }
            | ConnectionStage::Reset => {}
        }
    }

    fn poll_open(&mut self, now: Instant, output: &mut Vec<Segment>) {
        let begin = output.len();
        if self.run_app(now) == AppAction::Reset {
            output.push(Segment {
                seq: self.sender.seq(self.sender.next),
                ..self.bare(Flags::RST.and(Flags::ACK))
            });
            self.stage = ConnectionStage::Reset;
            return;
        }
        let due = self.ack_at.is_some_and(|at| at <= now) || self.receiver.wants_update();
        if due || self.sender.wants_to_send(now) {
            self.receiver.open(self.scaled);
        }
        while let Some(piece) = self.sender.again(self.mss, now) {
            let piece = self.overlapped(piece);
            output.push(self.data(piece));
        }
        while let Some(piece) = {
            let odd = self.rng.chance(100);
            let size = if odd {
                self.rng.within(1..=self.mss)
            } else {
                self.mss
            };
            self.sender.fresh(size)
        } {
            output.push(self.data(piece));
        }
        self.sender.arm(now);
        if due && output.len() == begin {
            output.push(self.bare(Flags::ACK));
        }
        if output.len() > begin {
            self.ack_at = None;
            self.unacked = 0;
        }
        self.make_mischief(begin, output);
        if self.sender.fin_acknowledged() && self.receiver.ended() && self.ack_at.is_none() {
            self.stage = ConnectionStage::Closed;
        }
    }

    fn run_app(&mut self, now: Instant) -> AppAction {
        let Some(app) = &mut self.app else {
            return AppAction::None;
        };
        self.receiver.taken += app.read(self.receiver.next - self.receiver.taken, now);
        if self.receiver.ended() && self.receiver.taken == self.receiver.next {
            app.peer_ended(now);
        }
        let room = self
            .plan
            .send_buffer
            .saturating_sub(self.sender.written - self.sender.una.min(self.sender.written));
        self.sender.written += app.write(room, now);
        let act = app.act(now);
        self.sender.closed |= act == AppAction::Close;
        act
    }

    fn data(&self, piece: StreamRange) -> Segment {
        let mut flags = Flags::ACK;
        if piece.fin {
            flags = flags.and(Flags::FIN);
        }
        if piece.to == self.sender.written {
            flags = flags.and(Flags::PSH);
        }
        let len = (piece.to - piece.from) as usize;
        Segment {
            seq: self.sender.seq(piece.from),
            payload: pattern::bytes(streams::up(self.port), piece.from, len),
            ..self.bare(flags)
        }
    }

    fn bare(&self, flags: Flags) -> Segment {
        let sack = if self.sack {
            self.receiver.blocks()
        } else {
            Vec::new()
        };
        Segment {
            from: self.local,
            to: self.remote,
            seq: self.sender.bare_seq(),
            ack: self.receiver.ack(),
            flags,
            window: self.receiver.window(self.scaled),
            sack,
            ..Segment::EMPTY
        }
    }

    /// Returns the time at which the connection has to be polled next.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        match self.stage {
            ConnectionStage::Waiting(at) => Some(at),
            ConnectionStage::SynSent { again, .. } | ConnectionStage::SynReceived { again, .. } => {
                Some(again)
            }
            ConnectionStage::Open | ConnectionStage::Closed => {
                let app = self.app.as_ref()?;
                let room = self
                    .plan
                    .send_buffer
                    .saturating_sub(self.sender.written - self.sender.una.min(self.sender.written));
                let app = app.next(self.receiver.next - self.receiver.taken, room);
                let next = earlier(app, earlier(self.ack_at, self.sender.retry_at()))?;
                Some(next.max(now + Duration::from_nanos(1)))
            }
            ConnectionStage::Reset => None,
        }
    }
}

const SYN_AGAIN: Duration = Duration::from_secs(1);
const DELAYED_ACK: Duration = Duration::from_millis(40);
