//! The engine's door: frames, socket events and time come in here and go to the protocol that they concern.

use core::net::{IpAddr, SocketAddr};

use pontoon_wire::Mac;
use pontoon_wire::frame::{self, Body, Ip, Malformed, Transport};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::config::Config;
use crate::counters::Counters;
use crate::ctx::{Ctx, Net};
use crate::local::{self, Handled};
use crate::policy::Policy;
use crate::pool::Pool;
use crate::tcp::{Burst, Tcp};
use crate::timer::Wheel;
use crate::{FlowId, Frame, Host, Instant, Kind, Readiness, Transmit, WorkerId};

/// The engine of one worker.
#[derive(Debug)]
pub struct Engine<H: Host> {
    net: Net,
    tcp: Tcp<H::Socket>,
}

/// What the handlers of one call gather from its frames; it leaves when the call ends.
#[derive(Debug, Default)]
struct Gathered<'a> {
    tcp: Burst<'a>,
}

impl<H: Host> Engine<H> {
    /// An engine with no flows. `seed` feeds every random choice; `now` is the time of the first turn.
    #[must_use]
    pub fn new(config: Config, worker: WorkerId, seed: [u8; 32], now: Instant) -> Self {
        let mut random = ChaCha12Rng::from_seed(seed);
        let tcp = Tcp::new(&mut random);
        let policy = Policy {
            addresses: config.addresses,
            host_loopback: config.host_loopback.clone(),
            host_addresses: config.host_addresses,
            owned: Vec::new(),
        };
        let net = Net {
            policy,
            counters: Counters::default(),
            pool: Pool::default(),
            flows: 0,
            allowance: (config.max_flow_rate.unwrap_or(0), now),
            timers: Wheel::default(),
            random,
            worker,
            guest_mac: config.guest_mac,
            mtu: usize::from(config.mtu),
            ready: std::collections::VecDeque::new(),
            parked: Vec::new(),
            config,
        };
        Self { net, tcp }
    }

    /// A burst of frames from the guest.
    pub fn handle_frames<T: Transmit>(
        &mut self,
        frames: &[Frame<'_>],
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        let mut gathered = Gathered::default();
        self.net.mtu = link.limits().mtu;
        let ctx = &mut Ctx {
            host,
            link,
            net: &mut self.net,
            now,
        };
        for frame in frames {
            ctx.net.counters.frames_up += 1;
            match frame::parse(frame.head, frame.len) {
                Ok(parsed) => {
                    if is_unicast(parsed.source) {
                        ctx.net.guest_mac = parsed.source;
                    }
                    if local::handle(frame, &parsed, ctx.net, ctx.link) == Handled::No
                        && let Body::Ip(ip, transport) = &parsed.body
                    {
                        dispatch(&mut self.tcp, frame, ip, transport, &mut gathered, ctx);
                    }
                }
                Err(Malformed::EtherType(_)) => ctx.net.counters.unknown_protocol += 1,
                Err(_) => ctx.net.counters.malformed += 1,
            }
        }
        self.tcp.handle_burst(&mut gathered.tcp, ctx);
        ctx.link.flush();
    }

    /// An event on a socket or listener.
    pub fn handle_socket<T: Transmit>(
        &mut self,
        flow: FlowId,
        ready: Readiness,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        let ctx = &mut Ctx {
            host,
            link,
            net: &mut self.net,
            now,
        };
        match flow.kind {
            Kind::Tcp => self.tcp.handle_socket(flow, ready, ctx),
            Kind::Listener => self.tcp.handle_listener(flow, ctx),
            Kind::Udp | Kind::Icmp | Kind::Dns | Kind::Edge => {}
        }
        ctx.link.flush();
    }

    /// Serves the timers that are due.
    pub fn handle_timeout<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        while let Some(flow) = self.net.timers.expired(now) {
            let ctx = &mut Ctx {
                host: &mut *host,
                link: &mut *link,
                net: &mut self.net,
                now,
            };
            match flow.kind {
                Kind::Tcp => self.tcp.handle_timeout(flow, ctx),
                Kind::Udp | Kind::Icmp | Kind::Dns | Kind::Listener | Kind::Edge => {}
            }
        }
        link.flush();
    }

    /// The link has room again.
    pub fn handle_link_ready<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        for flow in core::mem::take(&mut self.net.parked) {
            self.resume(flow, link, host, now);
        }
        link.flush();
    }

    /// Gives each flow that has more to do one quantum (64 KiB). True while some flow has still more.
    pub fn handle_ready<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) -> bool {
        for _ in 0..self.net.ready.len() {
            if let Some(flow) = self.net.ready.pop_front() {
                self.resume(flow, link, host, now);
            }
        }
        link.flush();
        !self.net.ready.is_empty()
    }

    fn resume<T: Transmit>(&mut self, flow: FlowId, link: &mut T, host: &mut H, now: Instant) {
        let ctx = &mut Ctx {
            host,
            link,
            net: &mut self.net,
            now,
        };
        match flow.kind {
            Kind::Tcp => self.tcp.handle_ready(flow, ctx),
            Kind::Listener => self.tcp.handle_listener(flow, ctx),
            Kind::Udp | Kind::Icmp | Kind::Dns | Kind::Edge => {}
        }
    }

    /// Whether [`Self::handle_ready`] has something to do.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.net.ready.is_empty()
    }

    /// Whether some flow waits for room on the link.
    #[must_use]
    pub fn has_parked(&self) -> bool {
        !self.net.parked.is_empty()
    }

    /// When [`Self::handle_timeout`] has something to do; `None`: never, until something else happens.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.net.timers.next()
    }

    /// The host's resolvers have changed.
    pub fn set_resolvers(&mut self, resolvers: Vec<SocketAddr>) {
        self.net.config.resolvers = resolvers;
    }

    /// The host's own addresses have changed.
    pub fn set_owned_addresses(&mut self, owned: Vec<IpAddr>) {
        self.net.policy.owned = owned;
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.net.counters
    }

    /// Flows of every kind that hold a slot.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.net.flows as usize
    }

    /// Bytes of pool memory that flows hold.
    #[must_use]
    pub fn pool_in_use(&self) -> usize {
        self.net.pool.in_use()
    }
}

fn is_unicast(mac: Mac) -> bool {
    mac.0[0] & 1 == 0
}

/// Hands an IP packet to its protocol.
fn dispatch<'a, H: Host, T: Transmit>(
    tcp: &mut Tcp<H::Socket>,
    frame: &Frame<'a>,
    ip: &Ip,
    transport: &Transport,
    gathered: &mut Gathered<'a>,
    ctx: &mut Ctx<'_, H, T>,
) {
    match transport {
        Transport::Tcp(segment) => {
            let dns = ctx.net.config.resolvers.first().copied();
            tcp.handle_segment(frame, ip, segment, dns, &mut gathered.tcp, ctx);
        }
        Transport::Udp(_) | Transport::Icmp(_) | Transport::Fragment | Transport::Other => {
            ctx.net.counters.unknown_protocol += 1;
        }
    }
}
