//! Tests of single packets: packets from the guest, *all* packets to the guest, and the changes of counters.
//!
//! Sequence numbers of the engine are relative to its random initial one: its SYN is 0.
//!
//! ```
//! use pontoon_simnet::transcript::{ACK, Given, SYN, down, up};
//! use pontoon_simnet::frames::Segment;
//!
//! let mut given = Given::server();
//! given.up(Segment { mss: Some(1460), ..up(SYN, 1000, 0) });
//! given.down(Segment { mss: Some(1460), ..down(SYN.and(ACK), 0, 1001) });
//! given.quiet();
//! given.counted(|counters| {
//!     counters.frames_up += 1;
//!     counters.frames_down += 1;
//!     counters.tcp_opened += 1;
//! });
//! ```

use core::net::{IpAddr, SocketAddr, SocketAddrV4};
use core::time::Duration;
use std::collections::VecDeque;

use ipnet::IpNet;
use pontoon_engine::decider::{DecisionToken, TokenState, Verdict};
use pontoon_engine::egress::EgressRule;
use pontoon_engine::{
    Config, Counters, Engine, FlowId, Frame, Instant, Limits, Readiness, Transmit, WorkerId,
};
use pontoon_wire::frame::Flags;
use pontoon_wire::vnet::{Offload, Segmentation};
use vm_memory::VolatileSlice;

use crate::app::Script;
use crate::clock::earlier;
use crate::frames::{Packet, Segment};
use crate::host::hand_over::succeed;
use crate::host::{ConnectResult, HostPlan, SimHost};
use crate::link::{LinkPlan, SimLink};
use crate::rng::Rng;
use crate::settings::{GUEST_V4, SERVER_V4, addressing, config};
use crate::streams;
use crate::turn;
use crate::world::hand_over::ALWAYS;

/// The TCP flag FIN.
pub const FIN: Flags = Flags::FIN;
/// The TCP flag SYN.
pub const SYN: Flags = Flags::SYN;
/// The TCP flag RST.
pub const RST: Flags = Flags::RST;
/// The TCP flag PSH.
pub const PSH: Flags = Flags::PSH;
/// The TCP flag ACK.
pub const ACK: Flags = Flags::ACK;

/// TCP port of the server on the simulated host.
pub const PORT: u16 = 80;
/// Address and port of the guest's end of the connection.
pub const GUEST: SocketAddr = SocketAddr::V4(SocketAddrV4::new(GUEST_V4, 40_000));
/// Address and port of the server's end of the connection.
pub const SERVER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(SERVER_V4, PORT));

/// Virtual time at which a transcript begins.
pub const START: Instant = Instant(1_000_000_000);

/// Returns a segment from the guest to the server.
#[must_use]
pub const fn up(flags: Flags, seq: u32, ack: u32) -> Segment {
    Segment::between(GUEST, SERVER).with(flags, seq, ack)
}

/// Returns an expected segment from the server to the guest, whose window is not compared.
#[must_use]
pub const fn down(flags: Flags, seq: u32, ack: u32) -> Segment {
    Segment::between(SERVER, GUEST).with(flags, seq, ack)
}

/// Returns the guest's SYN, with the MSS as its only option.
#[must_use]
pub fn syn() -> Segment {
    Segment {
        mss: Some(1460),
        ..up(SYN, 1000, 0)
    }
}

/// Returns the engine's expected SYN-ACK to [`syn`].
#[must_use]
pub fn syn_ack() -> Segment {
    Segment {
        mss: Some(1460),
        ..down(SYN.and(ACK), 0, 1001)
    }
}

/// An engine with simulated link and host, which a test runs step by step.
#[derive(Debug)]
pub struct Given {
    /// The engine under test.
    pub engine: Engine<SimHost>,
    /// The simulated host of the engine.
    pub host: SimHost,
    /// The simulated link between engine and guest.
    pub link: SimLink,
    /// True if the worker polls between steps instead of sleeping, as in pacing `poll`.
    pub awake: bool,
    now: Instant,
    out: VecDeque<(Offload, Packet)>,
    counters: Counters,
    /// The engine's initial sequence number.
    iss: u32,
    /// Number of steps after which the engine may be replaced by a successor with its state; `None` if it is not.
    steps: Option<u32>,
}

impl Given {
    /// Returns an engine with a link of MTU 1500 without offloads, and a host without listeners.
    #[must_use]
    pub fn new(config: Config, limits: Limits, host: HostPlan) -> Self {
        let mut rng = Rng::new(1);
        let link = LinkPlan {
            limits,
            refusals: 0,
            rejections: 0,
            depth: 1024,
            pause: Duration::from_millis(1),
        };
        let mut given = Self {
            engine: Engine::new(config, WorkerId(0), rng.key(), START),
            host: SimHost::new(host, rng.fork()),
            link: SimLink::new(link, rng.fork()),
            awake: false,
            now: START,
            out: VecDeque::new(),
            counters: Counters::default(),
            iss: 0,
            steps: std::env::var_os(ALWAYS).map(|_| 0),
        };
        given.host.tick(START);
        given.link.tick(START);
        given
    }

    /// Returns an engine whose host has a server on [`PORT`] that accepts at once, and reads everything.
    #[must_use]
    pub fn server() -> Self {
        Self::serving(Script::SINK)
    }

    /// Returns an engine whose host has a server on [`PORT`] that accepts at once, and runs `script`.
    #[must_use]
    pub fn serving(script: Script) -> Self {
        let mut given = Self::new(config(1500), PLAIN, HostPlan::default());
        given.host.serve(PORT, ConnectResult::Now, script);
        given
    }

    /// Returns an engine with an established connection: the guest's next sequence number is 1001, the engine's 1; the only
    /// options are MSS and SACK.
    #[must_use]
    pub fn open(script: Script) -> Self {
        let mut given = Self::serving(script);
        given.up(Segment {
            sack_permitted: true,
            ..syn()
        });
        given.down(Segment {
            sack_permitted: true,
            ..syn_ack()
        });
        given.up(up(ACK, 1001, 1));
        given.counters = *given.engine.counters();
        given
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Sends a segment from the guest. Its acknowledgement number is relative to the engine's initial sequence
    /// number.
    pub fn up(&mut self, segment: Segment) {
        let ack = self.absolute(&segment);
        self.packet_up(&Packet::Tcp(Segment { ack, ..segment }));
    }

    fn absolute(&self, segment: &Segment) -> u32 {
        match segment.flags.has(ACK) {
            true => segment.ack.wrapping_add(self.iss),
            false => segment.ack,
        }
    }

    /// Sends a packet from the guest without changing its acknowledgement number.
    pub fn packet_up(&mut self, packet: &Packet) {
        let frame = packet.emit(addressing().ether());
        self.frame_up(Offload::NONE, frame);
    }

    /// Sends segments from the guest in one burst. Their acknowledgement numbers are relative as in [`Self::up`].
    pub fn burst_up(&mut self, segments: impl IntoIterator<Item = Segment>) {
        let frames = segments.into_iter().map(|segment| self.frame(segment)).collect();
        self.frames_up(Offload::NONE, frames);
    }

    /// Returns the frame of a segment from the guest. Its acknowledgement number is relative as in [`Self::up`].
    #[must_use]
    pub fn frame(&self, segment: Segment) -> Vec<u8> {
        let ack = self.absolute(&segment);
        Packet::Tcp(Segment { ack, ..segment }).emit(addressing().ether())
    }

    /// Sends a frame from the guest.
    pub fn frame_up(&mut self, offload: Offload, frame: Vec<u8>) {
        self.frames_up(offload, vec![frame]);
    }

    /// Sends frames from the guest in one burst, with the same offload metadata.
    pub fn frames_up(&mut self, offload: Offload, mut frames: Vec<Vec<u8>>) {
        let heads: Vec<_> = frames
            .iter()
            .map(|frame| frame[..frame.len().min(pontoon_wire::frame::HEAD)].to_vec())
            .collect();
        let parts: Vec<_> = frames
            .iter_mut()
            .map(|frame| [VolatileSlice::from(frame.as_mut_slice())])
            .collect();
        let frames: Vec<_> = heads
            .iter()
            .zip(&parts)
            .map(|(head, parts)| Frame {
                offload,
                head,
                parts,
                len: parts[0].len(),
            })
            .collect();
        self.engine
            .handle_frames(&frames, &mut self.link, &mut self.host, self.now);
        self.settle();
    }

    /// Passes a socket event to the engine, before any other event.
    pub fn event(&mut self, flow: FlowId, ready: Readiness) {
        self.engine
            .handle_socket(flow, ready, &mut self.link, &mut self.host, self.now);
    }

    /// Sets the addresses of the host's interfaces, of which the engine is notified.
    pub fn set_owned(&mut self, owned: &[IpAddr]) {
        let owned: Vec<_> = owned.iter().copied().map(IpNet::from).collect();
        self.engine
            .set_owned_addresses(&owned, &mut self.link, &mut self.host, self.now);
        self.settle();
    }

    /// Notifies the engine that the guest has disconnected.
    pub fn forget_guest(&mut self) {
        self.engine.forget_guest(&mut self.link, &mut self.host, self.now);
        self.settle();
    }

    /// Passes the decider's verdict about a flow to the engine.
    pub fn verdict(&mut self, token: DecisionToken, verdict: Verdict) -> TokenState {
        let Self {
            engine, host, link, ..
        } = self;
        let state = engine.take_verdict(token, verdict, link, host, self.now);
        self.settle();
        state
    }

    /// Notifies the engine that the decider has disconnected.
    pub fn deny_pending(&mut self) {
        self.engine.deny_pending(&mut self.link, &mut self.host, self.now);
        self.settle();
    }

    /// Replaces the egress rules.
    pub fn set_rules(&mut self, rules: &[EgressRule]) {
        self.engine
            .set_rules(rules, &mut self.link, &mut self.host, self.now);
        self.settle();
    }

    /// Advances the time by `time`, and processes all events in between at their times.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = earlier(
            earlier(self.host.next(), self.link.ready_at()),
            self.engine.next_timeout(),
        ) && next <= end
        {
            self.now = self.now.max(next);
            self.turn();
        }
        self.now = end;
        self.turn();
    }

    /// Advances the time by `time` at once, so that all timers in between expire together.
    pub fn jump(&mut self, time: Duration) {
        self.now += time;
        self.turn();
    }

    /// Checks that `expected` is the next packet to the guest. Windows and PSH are not compared.
    #[track_caller]
    pub fn down(&mut self, expected: Segment) {
        let Some((offload, packet)) = self.out.pop_front() else {
            panic!("no packet, but {expected:?} was expected");
        };
        let Packet::Tcp(mut got) = packet else {
            panic!("{packet:?}, but {expected:?} was expected");
        };
        let data = got.payload.len();
        assert!(
            offload.segmentation == Segmentation::Whole || data > 0,
            "{offload:?} of a segment without data"
        );
        if got.flags.has(SYN) {
            self.iss = got.seq;
        }
        got.seq = got.seq.wrapping_sub(self.iss);
        got.window = expected.window;
        got.flags.0 &= !PSH.0;
        if expected.payload.is_empty() {
            assert_eq!(got, expected);
        } else {
            assert!(got == expected, "{got:?} is not {expected:?}, or its data differ");
        }
    }

    /// Checks that the engine has sent no other packet to the guest, and has violated no rule of host or link.
    #[track_caller]
    pub fn quiet(&self) {
        assert!(self.out.is_empty(), "not quiet: {:?}", self.out);
        assert_eq!(self.host.wrong(), [""; 0]);
        assert_eq!(self.link.wrong(), [""; 0]);
    }

    /// Returns the only packet that was sent to the guest, which must be a segment, with absolute numbers.
    #[track_caller]
    pub fn take_one(&mut self) -> Segment {
        match <[Packet; 1]>::try_from(self.take()) {
            Ok([Packet::Tcp(segment)]) => segment,
            other => panic!("{other:?} is not one segment"),
        }
    }

    /// Returns all packets that were sent to the guest, with absolute numbers.
    pub fn take(&mut self) -> Vec<Packet> {
        self.out.drain(..).map(|(_, packet)| packet).collect()
    }

    /// Checks that exactly these counters have changed by exactly these amounts since the last call.
    #[track_caller]
    pub fn counted(&mut self, moved: impl FnOnce(&mut Counters)) {
        moved(&mut self.counters);
        let now = *self.engine.counters();
        let expected = core::mem::replace(&mut self.counters, now);
        let differing: Vec<_> = now
            .iter()
            .zip(expected.iter())
            .filter(|(now, expected)| now != expected)
            .map(|((name, now), (_, expected))| format!("{name} is {now}, not {expected}"))
            .collect();
        assert!(differing.is_empty(), "{differing:?}");
    }

    /// Excludes all changes of counters so far from the next check.
    pub fn forget_counters(&mut self) {
        self.counters = *self.engine.counters();
    }

    /// Returns `len` bytes of the guest's stream from the offset `at` on.
    #[must_use]
    pub fn guest_bytes(at: u64, len: usize) -> Vec<u8> {
        crate::pattern::bytes(streams::up(PORT), at, len)
    }

    /// Returns `len` bytes of the server's stream from the offset `at` on.
    #[must_use]
    pub fn server_bytes(at: u64, len: usize) -> Vec<u8> {
        crate::pattern::bytes(streams::down(PORT), at, len)
    }

    /// Replaces the engine by a successor with its state.
    pub fn hand_over(&mut self) {
        let seed = [self.now.0 as u8; 32];
        let successor = succeed(&mut self.engine, None, seed, &mut self.host, self.now);
        self.engine = successor.unwrap_or_else(|error| panic!("{error}"));
        self.engine
            .handle_restored(&mut self.link, &mut self.host, self.now);
    }

    fn turn(&mut self) {
        self.link.tick(self.now);
        self.host.tick(self.now);
        let room = self.link.take_room_event(self.now);
        turn::handle_due(&mut self.engine, &mut self.link, &mut self.host, room, self.now);
        self.settle();
    }

    fn settle(&mut self) {
        for (flow, ready) in self.host.events() {
            self.engine
                .handle_socket(flow, ready, &mut self.link, &mut self.host, self.now);
        }
        let done = turn::handle_all_ready(&mut self.engine, &mut self.link, &mut self.host, self.now);
        done.unwrap_or_else(|error| panic!("{error}"));
        if !self.awake {
            self.engine.handle_idle(&mut self.link, &mut self.host, self.now);
        }
        self.link.flush();
        if let Some(steps) = &mut self.steps {
            *steps += 1;
            // Transcripts with thousands of steps repeat them.
            if *steps < 64 || steps.is_multiple_of(32) {
                self.hand_over();
            }
        }
        for (offload, frame) in self.link.take() {
            let parsed = Packet::parse(offload, &frame);
            let (_, packet) = parsed.unwrap_or_else(|error| panic!("{error} in {frame:02x?}"));
            self.out.push_back((offload, packet));
        }
    }
}

/// Limits of a link without segmentation offload, MTU 1500.
pub const PLAIN: Limits = Limits {
    mtu: 1500,
    max_gso: 65_535,
    tso4: false,
    tso6: false,
    uso: false,
};
