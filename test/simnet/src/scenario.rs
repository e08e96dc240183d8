//! Scenarios: the connections of a world, their scripts, and the behaviour of network and host, all derived from a
//! seed.

mod draw;
mod expect;

use core::net::IpAddr;
use core::time::Duration;

use pontoon_engine::config::{Protocol, Published};
use pontoon_engine::{Counters, Instant};

use crate::app::Script;
use crate::guest::scripted::{Scripted, ScriptedPlan};
use crate::guest::smol::Smol;
use crate::guest::{Guest, GuestCall, GuestListener};
use crate::host::ConnectResult;
use crate::net::Filter;
use crate::rng::Rng;
use crate::settings::{SERVER_V4, SERVER_V6, addressing};
use crate::world::{SimWorld, WorldPlan};

/// The side that opens a connection, and the response of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The guest opens the connection; the host responds as specified.
    Guest(ConnectResult),
    /// A client of the host opens the connection to a published port.
    Host,
    /// A client opens a connection to a published port on which the guest does not listen.
    HostToClosedPort,
}

/// One TCP connection of a scenario.
#[derive(Clone, Debug)]
pub struct ScenarioConnection {
    /// The port that identifies the connection and its streams.
    pub port: u16,
    /// True for IPv6, false for IPv4.
    pub v6: bool,
    /// The side that opens the connection.
    pub opening: Opening,
    /// Script of the guest's application.
    pub guest: Script,
    /// Script of the peer on the host's side.
    pub host: Script,
    /// Time from the start of the world to the start of the connection.
    pub after: Duration,
}

/// The TCP stack of the guest.
#[derive(Clone, Debug)]
pub enum GuestPlan {
    /// smoltcp, with the sizes of its receive and send buffers in bytes.
    Smol(usize, usize),
    /// The scripted guest, with its configuration.
    Scripted(ScriptedPlan),
}

/// A world, its guest, and the connections between guest and host.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed of the world's random number generator.
    pub seed: u64,
    /// Configuration of network, link, host and engine.
    pub world: WorldPlan,
    /// TCP stack and configuration of the guest.
    pub guest: GuestPlan,
    /// The TCP connections of the scenario.
    pub connections: Vec<ScenarioConnection>,
    /// Virtual time within which all connections must end.
    pub limit: Duration,
}

/// The result of a run of a scenario.
#[derive(Clone, Debug)]
pub struct ScenarioResult {
    /// Counters of the engine at the end of the run.
    pub counters: Counters,
    /// Sum of the connect times that the workers have recorded.
    pub connecting: Duration,
    /// Description of the failure; `None` if the run succeeded.
    pub failure: Option<String>,
    /// One line for each packet and event, if a trace was requested.
    pub trace: String,
    /// Number of applications that gave up because a reset was lost.
    pub gave_up: usize,
    /// Number of connections that the guest's application never got, as every segment of the handshake was lost.
    pub unopened: usize,
    /// Number of connections that stalled because of a defect of the guest's own TCP stack.
    pub broken: usize,
    /// Number of host connections on which the engine has enabled keepalive.
    pub keepalives: usize,
    /// Number of frames that the simulated link has rejected.
    pub rejected: u64,
    /// Number of times that the engine was replaced by a successor.
    pub hand_overs: u64,
    /// Duration of the run in virtual time.
    pub virtual_time: Duration,
}

impl Scenario {
    /// Returns the scenario that `seed` determines.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        draw::scenario(seed)
    }

    /// Returns the scenario that `seed` determines, with two to four workers.
    #[must_use]
    pub fn with_workers(seed: u64) -> Self {
        let mut scenario = draw::scenario(seed);
        scenario.world.workers = draw::workers(seed);
        scenario
    }

    /// Returns the scenario that `seed` determines, with one to four workers, in which the engine is replaced by successors with
    /// its state.
    #[must_use]
    pub fn with_hand_overs(seed: u64) -> Self {
        let mut scenario = match seed % 2 {
            0 => Self::from_seed(seed),
            _ => Self::with_workers(seed),
        };
        scenario.world.hand_overs = draw::hand_overs(seed);
        scenario
    }

    /// Returns a scenario with one connection, without impairments, and with a peer that responds at once.
    #[must_use]
    pub fn calm(guest: GuestPlan, connection: ScenarioConnection) -> Self {
        draw::calm(guest, connection)
    }

    /// Runs the scenario. If `traced` is true, the result has a line for each packet and event.
    #[must_use]
    pub fn run(&self, traced: bool) -> ScenarioResult {
        self.run_filtered(traced, None, None)
    }

    /// Runs the scenario with filters for the frames from the guest (`up`) and to the guest (`down`).
    #[must_use]
    pub fn run_filtered(&self, traced: bool, up: Option<Filter>, down: Option<Filter>) -> ScenarioResult {
        let mut rng = Rng::new(self.seed ^ 0x5eed);
        match &self.guest {
            GuestPlan::Smol(receive, send) => {
                let mtu = self.world.link.limits.mtu;
                let make = |rng| Smol::new(addressing(), mtu, *receive, *send, rng);
                self.run_in(SimWorld::new(self.world(), rng.fork(), make), traced, [up, down])
            }
            GuestPlan::Scripted(plan) => {
                let make = |rng| Scripted::new(addressing(), plan.clone(), rng);
                self.run_in(SimWorld::new(self.world(), rng.fork(), make), traced, [up, down])
            }
        }
    }

    /// Returns the configuration of the world, with published ports for the clients of the scenario.
    #[must_use]
    pub fn world(&self) -> WorldPlan {
        let mut plan = self.world.clone();
        plan.config.published = self.incoming().map(published).collect();
        plan
    }

    fn incoming(&self) -> impl Iterator<Item = &ScenarioConnection> {
        self.connections
            .iter()
            .filter(|connection| !matches!(connection.opening, Opening::Guest(_)))
    }

    /// Adds the guest's calls and listeners, and the host's peers, to a world.
    pub fn populate<G: Guest>(&self, world: &mut SimWorld<G>) {
        let start = world.now();
        for (index, connection) in self.connections.iter().enumerate() {
            if let Opening::Guest(answer) = connection.opening {
                world.host.serve(connection.port, answer, connection.host.clone());
                world.guest.call(GuestCall {
                    to: (server(connection.v6), connection.port).into(),
                    from: 40_000 + index as u16,
                    script: connection.guest.clone(),
                    at: start + connection.after,
                });
            }
        }
        for (listener, connection) in self.incoming().enumerate() {
            if connection.opening == Opening::Host {
                world.guest.listen(GuestListener {
                    port: connection.port,
                    script: connection.guest.clone(),
                });
            }
            world.host.connect_in(
                listener as u32,
                (server(connection.v6), 50_000 + listener as u16).into(),
                connection.port,
                connection.host.clone(),
                start + connection.after,
            );
        }
    }

    fn run_in<G: Guest>(
        &self,
        mut world: SimWorld<G>,
        traced: bool,
        filters: [Option<Filter>; 2],
    ) -> ScenarioResult {
        [world.up.filter, world.down.filter] = filters;
        if traced {
            world.keep_trace();
        }
        let start: Instant = world.now();
        self.populate(&mut world);
        let ended = world.run_to_end(self.limit).and_then(|()| self.judge(&world));
        ScenarioResult {
            counters: world.counters(),
            connecting: world.connecting(),
            failure: ended.err(),
            trace: world.trace().to_owned(),
            gave_up: expect::gave_up(&world),
            unopened: expect::unopened(self, &world),
            broken: world
                .guest
                .reports()
                .iter()
                .filter(|report| report.broken)
                .count(),
            keepalives: world.host.reports().filter(|report| report.keepalive).count(),
            rejected: world.link.rejected(),
            hand_overs: world.hand_overs(),
            virtual_time: world.now().since(start),
        }
    }
}

fn published(connection: &ScenarioConnection) -> Published {
    let any: IpAddr = match connection.v6 {
        true => core::net::Ipv6Addr::UNSPECIFIED.into(),
        false => core::net::Ipv4Addr::UNSPECIFIED.into(),
    };
    Published::new(Protocol::Tcp, (any, connection.port).into(), connection.port)
}

/// Returns the address of the simulated server.
#[must_use]
pub fn server(v6: bool) -> IpAddr {
    match v6 {
        true => SERVER_V6.into(),
        false => SERVER_V4.into(),
    }
}
