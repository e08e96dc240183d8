//! Runs a whole engine to which a script delivers frames, socket events and time.
//!
//! After every step these conditions are checked: no handler has panicked, every frame to the guest is well formed,
//! and no limit is exceeded. At the end only state without a timeout may remain.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pontoon_engine::config::{Protocol, Published};
use pontoon_engine::decider::{Answer, DEADLINE, Decider, DecisionToken, Denial, FlowRequest, Verdict};
use pontoon_engine::egress::EgressRule;
use pontoon_engine::proxy::{Proxy, ProxyDestinations};
use pontoon_engine::{
    Config, Egress, Engine, FlowId, Frame, Instant, Kind, Limits, Readiness, Transmit, WorkerId,
};
use pontoon_proxy::Protocol as ProxyProtocol;
use pontoon_simnet::frames::Packet;
use pontoon_simnet::link::{LinkPlan, SimLink};
use pontoon_simnet::rng::Rng;
use pontoon_simnet::settings::config;
use pontoon_simnet::transcript::START;
use pontoon_simnet::turn;
use pontoon_wire::frame::HEAD;
use pontoon_wire::vnet::{self, Offload};
use vm_memory::VolatileSlice;

use crate::script::Script;

mod guest;
mod host;
pub mod state;

use guest::EngineGuest;
use host::HostileHost;

/// The engine's limit on flows (`max_flows`) in these runs.
const FLOWS: u32 = 12;

/// Bytes of guest data that one worker may keep in its pool because sockets did not accept them.
const POOL: usize = 32 << 20;

/// Egress rules that require proofs of names on the ports 80 and 81. The guest queries these names.
const NAMES: [&str; 4] = [
    "allow a:80-81/tls",
    "allow b:80-81/tls-strict",
    "allow *:82-83",
    "allow */icmp",
];

/// Runs the engine with a script. Panics if the engine violates a check.
pub fn run(script: &[u8]) {
    let mut runner = EngineRunner::new(Script(script));
    while let Some(step) = runner.host.script.next_byte() {
        runner.step(step);
        runner.check();
    }
    runner.end();
}

/// The engine under test with scripted host, link and guest.
struct EngineRunner<'s> {
    engine: Engine<HostileHost<'s>>,
    host: HostileHost<'s>,
    link: SimLink,
    guest: EngineGuest,
    now: Instant,
    burst: Vec<(Offload, Vec<u8>)>,
    /// The decider, if there is one.
    decider: Option<ScriptedDecider>,
    /// True after the engine was replaced by a successor with a modified state, whose sockets and flows do not match.
    is_damaged: bool,
}

impl<'s> EngineRunner<'s> {
    fn new(script: Script<'s>) -> Self {
        let mut host = HostileHost::new(script);
        let options = host.script.byte();
        let rules = if host.has_names { &NAMES[..] } else { &[] };
        let rules: Vec<EgressRule> = rules.iter().map(|rule| rule.parse().expect("a rule")).collect();
        let config = Config {
            egress: Egress::new(&rules),
            proxy: host
                .proxy
                .map(|protocol| Arc::new(proxy(protocol, host.has_routes))),
            max_flows: FLOWS,
            max_flow_rate: (options & 1 == 1).then_some(5),
            resolvers: vec![
                "198.51.100.53:53".parse().unwrap(),
                "[2001:db8::53]:53".parse().unwrap(),
            ],
            host_loopback: vec![Ipv4Addr::new(10, 0, 2, 2).into()],
            published: vec![published(Protocol::Tcp, 80), published(Protocol::Udp, 53)],
            ..config(1500)
        };
        let limits = Limits {
            mtu: 1500,
            max_gso: 65_535,
            tso4: options & 2 == 2,
            tso6: options & 4 == 4,
            uso: options & 8 == 8,
        };
        let plan = LinkPlan {
            limits,
            refusals: u32::from(options >> 6) * 50,
            rejections: u32::from(options & 16),
            depth: 1024,
            pause: Duration::from_millis(1),
        };
        let mut runner = Self {
            engine: Engine::new(config, WorkerId(0), [7; 32], START),
            link: SimLink::new(plan, Rng::new(host.script.u16().into())),
            host,
            guest: EngineGuest::default(),
            now: START,
            burst: Vec::new(),
            decider: (options & 32 == 32).then(ScriptedDecider::default),
            is_damaged: false,
        };
        if let Some(decider) = &runner.decider {
            runner.engine.set_decider(Box::new(decider.clone()), DEADLINE);
        }
        runner.link.tick(START);
        let opened = runner
            .engine
            .open_published(&mut runner.link, &mut runner.host, START);
        assert_eq!(opened, []);
        runner
    }

    fn step(&mut self, step: u8) {
        self.link.tick(self.now);
        self.decide();
        match step % 16 {
            0..=6 => {
                let frame = self.guest.next_frame(&mut self.host.script);
                let offload = self.offload();
                self.burst.push((offload, frame));
                // Three of four frames form a burst of their own.
                if step & 0x30 != 0 {
                    self.frames();
                }
            }
            7 => self.frames(),
            8..=10 => {
                if let Some((flow, ready)) = self.host.event() {
                    self.event(flow, ready);
                }
            }
            11 => self.event(listener(), Readiness::default()),
            12 | 13 => {
                let count = self.host.script.u16().into();
                self.pass(match step & 1 {
                    0 => Duration::from_micros(count),
                    _ => Duration::from_millis(count),
                });
            }
            14 => {
                self.engine.handle_idle(&mut self.link, &mut self.host, self.now);
            }
            _ => {
                let owned = Ipv4Addr::from(self.host.script.u32());
                self.engine.set_owned_addresses(
                    &[IpAddr::from(owned).into()],
                    &mut self.link,
                    &mut self.host,
                    self.now,
                );
                self.engine.set_resolvers(vec![(owned, 53).into()]);
            }
        }
    }

    /// Passes a verdict about one of the pending flows to the engine, in most steps.
    fn decide(&mut self) {
        let Some(decider) = self.decider.as_ref().filter(|decider| !decider.is_empty()) else {
            return;
        };
        let what = self.host.script.byte();
        let verdict = match what % 16 {
            0..=5 => Verdict::Allow,
            6 => Verdict::Deny(Denial::Reset),
            7 => Verdict::Deny(Denial::Unreachable),
            8 => Verdict::Deny(Denial::Drop),
            9 => Verdict::Redirect((Ipv4Addr::LOCALHOST, 80).into()),
            10 => Verdict::Redirect((Ipv6Addr::LOCALHOST, 80).into()),
            11 => Verdict::RedirectToStream,
            12 => {
                return self.engine.deny_pending(&mut self.link, &mut self.host, self.now);
            }
            _ => return,
        };
        let token = decider.pick(usize::from(what / 16));
        let _ = self
            .engine
            .take_verdict(token, verdict, &mut self.link, &mut self.host, self.now);
        self.settle();
    }

    /// Returns offload metadata for a frame from the guest: usually none, otherwise any that a guest can send.
    fn offload(&mut self) -> Offload {
        if self.host.script.byte() & 7 != 7 {
            return Offload::NONE;
        }
        let header: [u8; vnet::LEN] = core::array::from_fn(|_| self.host.script.byte());
        vnet::parse(&header).map_or(Offload::NONE, |(offload, _)| offload)
    }

    fn frames(&mut self) {
        let mut burst = core::mem::take(&mut self.burst);
        let heads: Vec<_> = burst
            .iter()
            .map(|(_, frame)| frame[..frame.len().min(HEAD)].to_vec())
            .collect();
        let parts: Vec<_> = burst
            .iter_mut()
            .map(|(offload, frame)| (*offload, [VolatileSlice::from(frame.as_mut_slice())]))
            .collect();
        let frames: Vec<_> = heads
            .iter()
            .zip(&parts)
            .map(|(head, (offload, parts))| Frame {
                offload: *offload,
                head,
                parts,
                len: parts[0].len(),
            })
            .collect();
        self.engine
            .handle_frames(&frames, &mut self.link, &mut self.host, self.now);
        self.settle();
    }

    fn event(&mut self, flow: FlowId, ready: Readiness) {
        self.engine
            .handle_socket(flow, ready, &mut self.link, &mut self.host, self.now);
        self.settle();
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = [self.engine.next_timeout(), self.link.ready_at()]
            .into_iter()
            .flatten()
            .min()
            && next <= end
        {
            self.now = self.now.max(next);
            self.turn();
        }
        self.now = end;
        self.turn();
    }

    fn turn(&mut self) {
        self.link.tick(self.now);
        let room = self.link.take_room_event(self.now);
        turn::handle_due(&mut self.engine, &mut self.link, &mut self.host, room, self.now);
        self.settle();
    }

    fn settle(&mut self) {
        turn::handle_all_ready(&mut self.engine, &mut self.link, &mut self.host, self.now).unwrap();
        self.link.flush();
        for (offload, frame) in self.link.take() {
            let (_, packet) = Packet::parse(offload, &frame)
                .unwrap_or_else(|error| panic!("{error} in {frame:02x?}, {offload:?}"));
            self.guest.receive(packet);
        }
    }

    fn check(&self) {
        assert_eq!(self.engine.counters().panics, 0, "a handler panicked");
        assert_eq!(self.link.wrong(), [""; 0]);
        assert!(self.engine.pool_in_use() <= POOL);
        if self.is_damaged {
            return;
        }
        // Flows of published UDP ports exist from the start, DNS queries have their own limit, and one client whose decision is
        // pending may exceed the limit.
        let flows = self.engine.flows();
        assert!(flows <= FLOWS as usize + 2 + self.queries(), "{flows} flows");
        assert!(self.engine.proving() as usize <= flows);
        assert!(
            self.host.open() <= flows,
            "{} sockets of {flows} flows",
            self.host.open()
        );
    }

    /// Returns an upper bound of pending DNS queries: the number counted so far, as each is kept for a few seconds at
    /// most.
    fn queries(&self) -> usize {
        usize::try_from(self.engine.counters().dns_queries).unwrap()
    }

    /// Advances the time by more than any timeout, and checks that only established connections and the published UDP
    /// port remain.
    fn end(mut self) {
        self.frames();
        self.pass(Duration::from_secs(2 * 60 * 60));
        self.check();
        if self.is_damaged {
            return;
        }
        let left = self.engine.flows();
        assert!(left <= FLOWS as usize + 1, "{left} flows in the end");
    }
}

/// Decider that answers most requests later.
#[derive(Clone, Debug, Default)]
struct ScriptedDecider(Arc<Mutex<VecDeque<DecisionToken>>>);

impl ScriptedDecider {
    fn tokens(&self) -> MutexGuard<'_, VecDeque<DecisionToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.tokens().is_empty()
    }

    /// Removes and returns a token, which may have expired.
    fn pick(&self, nth: usize) -> DecisionToken {
        let mut tokens = self.tokens();
        let place = nth % tokens.len();
        tokens.remove(place).expect("a place in the list")
    }
}

impl Decider for ScriptedDecider {
    fn decide(&mut self, request: &FlowRequest) -> Answer {
        match request.token.0 % 8 {
            0 => Answer::Now(Verdict::Allow),
            1 => Answer::Now(Verdict::Deny(Denial::Reset)),
            2 => Answer::Unavailable,
            _ => {
                self.tokens().push_back(request.token);
                Answer::Later
            }
        }
    }
}

/// Returns a proxy for all destinations, or for those of one name only.
fn proxy(protocol: ProxyProtocol, has_routes: bool) -> Proxy {
    let direct: Vec<_> = has_routes
        .then(|| "b".parse().expect("a name"))
        .into_iter()
        .collect();
    Proxy {
        protocol,
        addresses: vec![host::PROXY],
        credentials: None,
        destinations: ProxyDestinations::new(&[], &direct),
        names: None,
    }
}

fn published(protocol: Protocol, port: u16) -> Published {
    Published::new(protocol, (Ipv4Addr::UNSPECIFIED, port).into(), port)
}

fn listener() -> FlowId {
    FlowId {
        kind: Kind::Listener,
        worker: WorkerId(0),
        index: 0,
        generation: 0,
    }
}
