//! Engine process: the loops of its workers, which drive the packet engine between links and host sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use pontoon_engine::Config;
use pontoon_engine::decider::Decider;
use pontoon_link::vhost_user::VhostUser;
use pontoon_link::{Link, LinkServer};
use pontoon_sandbox::{ResourceLimits, Sandbox};
use pontoon_sys::context;
use pontoon_sys::disabled::Disabled;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::level_filters::LevelFilter;
use tracing::{debug, warn};

mod capture;
mod cpus;
pub mod events;
#[cfg(any(test, fuzzing))]
pub mod hostile;
pub mod ledger;
mod limits;
mod mesh;
pub mod messages;
pub mod pacing;
mod polled;
pub mod stats;
mod worker;
mod workers;

pub use messages::Update;
pub use pacing::Pacing;
pub use polled::{Dispatched, PolledEngine};
pub use pontoon_host::Outbound;
pub use pontoon_link::{
    Attachment, FrontEndSocket, MACHINE_PROTOCOLS, MachineProtocol, Source, TapQueues, Vhost,
};
pub use pontoon_sys::tun::TapOffload;
#[cfg(test)]
use pontoon_test_support::namespace;

use messages::{EngineChannel, Report};

/// Configuration and descriptors of an engine process. The supervisor opens the descriptors, and keeps copies for the next
/// engine in case this one crashes.
#[derive(Debug)]
pub struct EngineSetup {
    /// Configuration of the packet engine.
    pub config: Config,
    /// Addresses of the host, and prefixes that a route of type `local` delivers to it.
    pub owned: Vec<IpNet>,
    /// One host socket for each entry of `config.published`, in its order: listening (TCP) or bound (UDP), non-blocking.
    pub published: Vec<OwnedFd>,
    /// Channels to the socket helper in the guest's network namespace; `None` if all clients are forwarded over the link.
    pub socket_helper: Option<SocketHelperChannels>,
    /// Raw ICMP and ICMPv6 sockets, if the supervisor had the privilege to open them.
    pub raw_icmp: [Option<OwnedFd>; 2],
    /// Way in which workers wait for input: spinning or sleeping.
    pub pacing: Pacing,
    /// Source address or interface of host sockets; `None` leaves the choice to the kernel.
    pub outbound: Outbound,
    /// Ledger of the workers' TCP connections, for the next engine.
    pub ledger: ledger::SharedLedger,
    /// Memory for the workers' statistics.
    pub stats: stats::StatsTable,
    /// Memory for the events of flows; `None` if no program can read them.
    pub events: Option<events::EventSetup>,
    /// The generation of the egress rules in `config`, at least 1.
    pub rules_generation: u64,
    /// Function that sets the level of the process's log.
    pub set_log_level: fn(LevelFilter),
    /// The decider about new flows, if there is one.
    pub decider: Option<DeciderSetup>,
    /// True if an earlier engine has served the guest: published ports that cannot be taken over are then reported with
    /// the next confirmation, instead of ending the start.
    pub restarted: bool,
}

/// Channels to the process in the guest's network namespace that opens sockets there.
#[derive(Clone, Debug)]
pub struct SocketHelperChannels {
    /// Cookie of the guest's network namespace (`SO_NETNS_COOKIE`).
    pub cookie: u64,
    /// A non-blocking channel for each worker.
    pub channels: Vec<Arc<OwnedFd>>,
}

/// Requirement that a decider is asked about new flows.
#[derive(Debug)]
pub struct DeciderSetup {
    /// Time after which a flow without a verdict is denied.
    pub deadline: Duration,
    /// The decider.
    pub decider: DeciderPlace,
}

/// Place of a decider.
#[derive(Debug)]
pub enum DeciderPlace {
    /// A program that the supervisor serves.
    Program {
        /// True if the program is connected.
        connected: bool,
    },
    /// This process, with one value for each worker. Flows of further workers are denied.
    Process(Vec<Box<dyn Decider>>),
}

impl EngineSetup {
    /// Returns the setup with the descriptors, and leaves none in `self`. For a child process, in whose memory `self` is a
    /// copy of the parent's.
    #[must_use]
    pub fn take(&mut self) -> Self {
        Self {
            config: self.config.clone(),
            owned: self.owned.clone(),
            published: std::mem::take(&mut self.published),
            socket_helper: self.socket_helper.take(),
            raw_icmp: std::mem::take(&mut self.raw_icmp),
            pacing: self.pacing,
            outbound: self.outbound.clone(),
            ledger: self.ledger,
            stats: self.stats.clone(),
            events: self.events.take(),
            rules_generation: self.rules_generation,
            set_log_level: self.set_log_level,
            decider: self.decider.take(),
            restarted: self.restarted,
        }
    }

    /// Returns all descriptors of the setup, which the engine process must not close.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let raw_icmp = self.raw_icmp.iter().flatten();
        let doorbell = self.events.iter().map(events::EventSetup::doorbell);
        let helper = self.socket_helper.iter().flat_map(|helper| &helper.channels);
        let others = self.published.iter().chain(raw_icmp);
        others
            .map(AsFd::as_fd)
            .chain(doorbell)
            .chain(helper.map(AsFd::as_fd))
    }
}

/// Runs an engine process: opens the descriptors of the workers' loops, enters the sandbox, and moves packets until the
/// supervisor closes its end of the channel `supervisor` or the guest disconnects and no other can connect. No byte of the
/// guest is processed before the process is in the sandbox.
///
/// [`Report::Ready`] on the channel means that the workers are about to run.
///
/// The process must have one thread, which becomes the first worker's. SIGPIPE cannot occur, because no send raises it and
/// the Rust runtime ignores it; splice(2) has no flag against it.
///
/// # Errors
/// The engine could not start, or had to stop; the text names the operation that failed.
pub fn run(
    setup: EngineSetup,
    attachment: Attachment,
    sandbox: Sandbox,
    disabled: &Disabled,
    supervisor: EngineChannel,
) -> io::Result<()> {
    raise_descriptor_limit();
    let mtu = setup.config.mtu;
    let engine = EngineStart {
        setup,
        sandbox: Some(sandbox),
        disabled,
        supervisor,
    };
    attachment.serve(mtu, engine)
}

/// Runs an engine as [`run`] does, but without a sandbox, in a thread of the caller, whose process is unchanged.
///
/// # Errors
/// Same as [`run`].
pub fn carry(setup: EngineSetup, attachment: Attachment, supervisor: EngineChannel) -> io::Result<()> {
    let mtu = setup.config.mtu;
    without_sandbox(setup, supervisor, |engine| attachment.serve(mtu, engine))
}

/// Runs an engine as [`carry`] does, for the guest of a VMM in this process.
///
/// # Errors
/// Same as [`run`].
pub fn carry_in_process(setup: EngineSetup, link: VhostUser, supervisor: EngineChannel) -> io::Result<()> {
    without_sandbox(setup, supervisor, |engine| engine.serve(vec![link]))
}

fn without_sandbox(
    setup: EngineSetup,
    supervisor: EngineChannel,
    serve: impl FnOnce(EngineStart<'_>) -> io::Result<()>,
) -> io::Result<()> {
    serve(EngineStart {
        setup,
        sandbox: None,
        disabled: &Disabled::from_env()?,
        supervisor,
    })
}

/// Engine that is to be started, without its links.
struct EngineStart<'a> {
    setup: EngineSetup,
    sandbox: Option<Sandbox>,
    disabled: &'a Disabled,
    supervisor: EngineChannel,
}

impl LinkServer for EngineStart<'_> {
    /// Runs a worker on each of `links`, which all belong to one guest.
    fn serve<L: Link + 'static>(self, links: Vec<L>) -> io::Result<()> {
        let Self {
            setup,
            sandbox,
            disabled,
            supervisor,
        } = self;
        let reports = supervisor.try_clone()?;
        let limits = most(setup.config.max_flows, links.len());
        let mut workers = workers::build(setup, links, disabled, supervisor)?;
        if let Some(sandbox) = sandbox {
            sandbox
                .limit(limits, disabled)
                .map_err(|error| context("cannot limit the engine", &error))?;
            let layers = sandbox.enter(disabled)?;
            match layers.any_refused() {
                true => warn!("the sandbox is incomplete: {}", layers.missing()),
                false => debug!("sandbox: {layers}"),
            }
            if let Some(first) = workers.first_mut() {
                first.sandbox = Some(layers);
            }
        }
        reports
            .try_send(&Report::Ready)
            .map_err(|error| context("cannot report readiness to the supervisor", &error))?;
        drop(reports);
        let end = workers::run(workers);
        debug!("the loop ended: {end:?}");
        end.map(|_| ())
            .map_err(|error| context("the engine's loop failed", &error))
    }
}

/// Returns resource limits that an engine does not reach in normal operation. A worker begins with 36 MiB of memory, a flow
/// has less than 1 KiB, and tables double when they grow; the end-to-end tests, with 10,000 flows that stall, reach 40 MiB.
fn most(max_flows: u32, workers: usize) -> ResourceLimits {
    let workers = workers as u64;
    ResourceLimits {
        memory: (512 << 20) + workers * (256 << 20) + u64::from(max_flows) * (8 << 10),
        // The further threads are those that write the files of captures, also of captures that are ending.
        threads: workers + 8,
    }
}

/// Raises the soft limit on descriptors to the hard one, because each flow has a descriptor.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!(
            "cannot raise the limit of open files to its hard value {:?}: {error}",
            limit.maximum
        );
    }
}

#[cfg(test)]
mod tests;
