//! Scenarios: the connections of a world, their scripts, and the behaviour of network and host, derived from a seed.

mod draw;
mod expect;

use core::net::IpAddr;
use core::time::Duration;

use pontoon_engine::config::{Protocol, Published};
use pontoon_engine::{Counters, Instant};

use crate::app::Script;
use crate::guest::scripted::{Scripted, ScriptedPlan};
use crate::guest::smol::Smol;
use crate::guest::{Call, Guest, GuestListener};
use crate::host::Answer;
use crate::net::Filter;
use crate::rng::Rng;
use crate::settings::{SERVER_V4, SERVER_V6, addressing};
use crate::world::{World, WorldPlan};

/// The side that opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The guest; the host responds as specified.
    Guest(Answer),
    /// A client of a published port.
    Host,
    /// A client of a published port on which the guest does not listen.
    HostToClosedPort,
}

/// One connection of a scenario.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The port that names it.
    pub port: u16,
    /// IPv6.
    pub v6: bool,
    /// The side that opens it.
    pub opening: Opening,
    /// Script of the guest's application.
    pub guest: Script,
    /// Script of the peer on the host's side.
    pub host: Script,
    /// The time at which it begins, since the start of the world.
    pub after: Duration,
}

/// The guest's TCP stack.
#[derive(Clone, Debug)]
pub enum GuestPlan {
    /// smoltcp, with the sizes of its receive and send buffers in bytes.
    Smol(usize, usize),
    /// The scripted guest.
    Scripted(ScriptedPlan),
}

/// A world with its guest and connections.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed of the random number generator.
    pub seed: u64,
    /// The world.
    pub world: WorldPlan,
    /// The guest.
    pub guest: GuestPlan,
    /// The connections.
    pub connections: Vec<Connection>,
    /// The time within which all connections end.
    pub limit: Duration,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The engine's counters at the end.
    pub counters: Counters,
    /// Sum of the connect times that the workers have recorded.
    pub connecting: Duration,
    /// Description of the failure.
    pub failure: Option<String>,
    /// A line for each packet and event, if requested.
    pub trace: String,
    /// Applications that gave up because a reset was lost.
    pub gave_up: usize,
    /// Connections that never reached the guest's application, as every segment of the handshake was lost.
    pub unopened: usize,
    /// Connections that the guest's own stack broke.
    pub broken: usize,
    /// The number of host connections on which keepalive was enabled.
    pub keepalives: usize,
    /// Frames that the engine's link rejected.
    pub rejected: u64,
    /// The virtual time that the run took.
    pub virtual_time: Duration,
}

impl Scenario {
    /// Returns the scenario of `seed`.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        draw::scenario(seed)
    }

    /// Returns the scenario of `seed`, with two to four workers.
    #[must_use]
    pub fn with_workers(seed: u64) -> Self {
        let mut scenario = draw::scenario(seed);
        scenario.world.workers = draw::workers(seed);
        scenario
    }

    /// Returns a scenario without impairments: one connection, and a peer that responds at once.
    #[must_use]
    pub fn calm(guest: GuestPlan, connection: Connection) -> Self {
        draw::calm(guest, connection)
    }

    /// Runs the scenario. `traced`: records a line for each packet and event.
    #[must_use]
    pub fn run(&self, traced: bool) -> Run {
        self.run_filtered(traced, None, None)
    }

    /// Runs the scenario with filters for frames from and to the guest.
    #[must_use]
    pub fn run_filtered(&self, traced: bool, up: Option<Filter>, down: Option<Filter>) -> Run {
        let mut rng = Rng::new(self.seed ^ 0x5eed);
        match &self.guest {
            GuestPlan::Smol(receive, send) => {
                let mtu = self.world.link.limits.mtu;
                let make = |rng| Smol::new(addressing(), mtu, *receive, *send, rng);
                self.run_in(World::new(self.world(), rng.fork(), make), traced, [up, down])
            }
            GuestPlan::Scripted(plan) => {
                let make = |rng| Scripted::new(addressing(), plan.clone(), rng);
                self.run_in(World::new(self.world(), rng.fork(), make), traced, [up, down])
            }
        }
    }

    /// Returns the world's settings, with the ports published at which clients connect.
    #[must_use]
    pub fn world(&self) -> WorldPlan {
        let mut plan = self.world.clone();
        plan.config.published = self.incoming().map(published).collect();
        plan
    }

    fn incoming(&self) -> impl Iterator<Item = &Connection> {
        self.connections
            .iter()
            .filter(|connection| !matches!(connection.opening, Opening::Guest(_)))
    }

    /// Adds the applications to a world.
    pub fn populate<G: Guest>(&self, world: &mut World<G>) {
        let start = world.now();
        for (index, connection) in self.connections.iter().enumerate() {
            if let Opening::Guest(answer) = connection.opening {
                world.host.serve(connection.port, answer, connection.host.clone());
                world.guest.call(Call {
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

    fn run_in<G: Guest>(&self, mut world: World<G>, traced: bool, filters: [Option<Filter>; 2]) -> Run {
        [world.up.filter, world.down.filter] = filters;
        if traced {
            world.keep_trace();
        }
        let start: Instant = world.now();
        self.populate(&mut world);
        let ended = world.run_to_end(self.limit).and_then(|()| self.judge(&world));
        Run {
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
            virtual_time: world.now().since(start),
        }
    }
}

fn published(connection: &Connection) -> Published {
    let any: IpAddr = match connection.v6 {
        true => core::net::Ipv6Addr::UNSPECIFIED.into(),
        false => core::net::Ipv4Addr::UNSPECIFIED.into(),
    };
    Published {
        protocol: Protocol::Tcp,
        host: (any, connection.port).into(),
        guest_port: connection.port,
    }
}

/// The server's address.
#[must_use]
pub fn server(v6: bool) -> IpAddr {
    match v6 {
        true => SERVER_V6.into(),
        false => SERVER_V4.into(),
    }
}
