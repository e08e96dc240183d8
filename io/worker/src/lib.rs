//! The engine process: the loops of its workers, which drive the packet engine between links and host sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ipnet::IpNet;
use pontoon_engine::Config;
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
#[cfg(any(test, fuzzing))]
pub mod hostile;
pub mod ledger;
mod limits;
mod mesh;
pub mod messages;
pub mod pacing;
pub mod stats;
mod worker;
mod workers;

pub use messages::Update;
pub use pacing::Pacing;
pub use pontoon_host::Outbound;
pub use pontoon_link::{
    Attachment, FrontEndSocket, MACHINE_PROTOCOLS, MachineProtocol, Source, TapQueues, Vhost,
};
pub use pontoon_sys::tun::TapOffload;
#[cfg(test)]
use pontoon_test_support::namespace;

use messages::{EngineChannel, Report};

/// The input of an engine process. Descriptors are opened by the supervisor, which keeps copies for the next engine,
/// should this one crash.
#[derive(Debug)]
pub struct EngineSetup {
    /// The configuration of the engine.
    pub config: Config,
    /// Addresses that the host owns now, and ranges of which it takes every address for its own.
    pub owned: Vec<IpNet>,
    /// One socket for each entry of `config.published`, in its order: listening (TCP) or bound (UDP), non-blocking.
    pub published: Vec<OwnedFd>,
    /// Raw ICMP and ICMPv6 sockets, where the caller had the privilege.
    pub raw_icmp: [Option<OwnedFd>; 2],
    /// The method of waiting for work.
    pub pacing: Pacing,
    /// The source of the host side's packets; `None`: the kernel's choice.
    pub outbound: Outbound,
    /// A record of the workers' connections for the next engine.
    pub ledger: ledger::SharedLedger,
    /// Memory for the workers' statistics.
    pub stats: stats::StatsTable,
    /// The generation of the egress rules in `config`, at least 1.
    pub rules_generation: u64,
    /// Sets the level of the process's log.
    pub set_log_level: fn(LevelFilter),
}

impl EngineSetup {
    /// The same, with the descriptors, of which none are left here: for a child, in whose memory this is a copy.
    #[must_use]
    pub fn take(&mut self) -> Self {
        Self {
            config: self.config.clone(),
            owned: self.owned.clone(),
            published: std::mem::take(&mut self.published),
            raw_icmp: std::mem::take(&mut self.raw_icmp),
            pacing: self.pacing,
            outbound: self.outbound.clone(),
            ledger: self.ledger,
            stats: self.stats.clone(),
            rules_generation: self.rules_generation,
            set_log_level: self.set_log_level,
        }
    }

    /// Every descriptor that the engine process needs of it.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let raw_icmp = self.raw_icmp.iter().flatten();
        self.published.iter().chain(raw_icmp).map(AsFd::as_fd)
    }
}

/// Opens what the workers need, enters the sandbox, and moves packets until the supervisor's end closes or the guest is
/// gone. No byte of the guest is processed before the process is in the sandbox.
///
/// The engine exits when the supervisor closes its end of the channel `supervisor`. [`Report::Ready`] on it means that the workers are about to run.
///
/// The process has one thread when this is called: the first worker's. SIGPIPE is of no concern, as the Rust runtime
/// ignores it and no send raises it.
///
/// # Errors
/// The engine could not start, or had to stop; the text names what failed.
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

/// The same without a sandbox, in a thread of the caller, whose process stays as it is.
///
/// # Errors
/// As [`run`].
pub fn carry(setup: EngineSetup, attachment: Attachment, supervisor: EngineChannel) -> io::Result<()> {
    let mtu = setup.config.mtu;
    without_sandbox(setup, supervisor, |engine| attachment.serve(mtu, engine))
}

/// As [`carry`], for the guest of a VMM in this process.
///
/// # Errors
/// As [`run`].
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

/// An engine without its links.
struct EngineStart<'a> {
    setup: EngineSetup,
    sandbox: Option<Sandbox>,
    disabled: &'a Disabled,
    supervisor: EngineChannel,
}

impl LinkServer for EngineStart<'_> {
    /// Runs a worker on each of `links`.
    fn serve<L: Link>(self, links: Vec<L>) -> io::Result<()> {
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

/// Returns resource limits that an engine never reaches. A worker begins with 36 MiB of memory, a flow has less than 1
/// KiB, and tables double when they grow; the end-to-end tests, with 10,000 flows that stall, bring it to 40.
fn most(max_flows: u32, workers: usize) -> ResourceLimits {
    let workers = workers as u64;
    ResourceLimits {
        memory: (512 << 20) + workers * (256 << 20) + u64::from(max_flows) * (8 << 10),
        // A capture's writer, and those of captures that come to their end.
        threads: workers + 8,
    }
}

/// Raises the soft limit of descriptors to the hard one: each flow has one.
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
