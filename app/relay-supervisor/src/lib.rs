//! Supervisor of `pontoon relay`: opens rings and sockets, passes them to workers, and watches the host's interfaces. It
//! reads no packet.
//!
//! `state` has the rules, the sockets and rings that are open for them, and the workers. Three events change it: new rules,
//! from the configuration file, the control socket, the kernel's routes or group memberships; a change of an interface; and
//! the exit of a worker, whose successor receives the whole state and continues the counters.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pontoon_relay::proxy::Proxy;
use pontoon_relay::rules::Rules;
use pontoon_relay::{Rule, config};
use pontoon_relay_worker::messages::Settings;
use pontoon_sys::disabled::Disabled;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Rlimit;

mod control;
mod counter_rows;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod inputs;
mod kernel;
mod links;
mod memberships;
mod metrics;
mod outputs;
mod proxies;
mod state;
mod worker_pool;

use pontoon_control::Metrics;
use pontoon_control::server::Server;
use pontoon_process::descriptor;
use pontoon_process::error::{Context as _, Error};
use pontoon_process::log::output::{self, LineQueue};
use pontoon_process::log::panics;
use pontoon_process::ready_notify::{PidFile, ReadyNotifier};
use pontoon_process::signals::Signals;

use kernel::KernelRoutes;
use links::LinkWatch;
use state::Relay;
use worker_pool::SpawnConfig;

/// Options of `pontoon relay`.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// Rules of the command line.
    pub rules: Vec<Rule>,
    /// Path of the configuration file, which has more rules.
    pub config: Option<PathBuf>,
    /// Number of processes that forward datagrams.
    pub workers: u8,
    /// Limit on the time for which a datagram waits for others, to be sent with them in one system call.
    pub max_delay: Duration,
    /// True if it is an error that the host refuses a layer of the workers' sandbox.
    pub require_sandbox: bool,
    /// True if rules are derived from the kernel's multicast routes.
    pub follow_kernel_routes: bool,
    /// Upstream and downstream interfaces of IGMP/MLD proxying.
    pub proxies: Vec<Proxy>,
    /// Path of the control socket.
    pub control: Option<PathBuf>,
    /// Address of the metrics endpoint, and the host names that requests may name.
    pub metrics: Option<Metrics>,
    /// Descriptor that is written when the relay is ready.
    pub ready_fd: Option<i32>,
    /// File to which the process id is written when the relay is ready.
    pub pid_file: Option<PidFile>,
}

/// Limit on the bytes of printed counters that are queued for a reader of standard output.
const PRINTED: usize = 1 << 20;

/// Delay between two attempts to open sockets and rings that could not be opened.
const RETRY: Duration = Duration::from_secs(1);

/// Runs the relay until a signal terminates it. SIGHUP reloads the configuration file, SIGUSR1 prints the counters.
///
/// # Errors
/// The first failure that prevents the start or the operation, described in one line.
pub fn run(options: &RelayOptions) -> Result<u8, Error> {
    panics::set_hook();
    output::prepare();
    // SAFETY: this process has opened no descriptor yet, and no other option names a descriptor.
    let ready = unsafe { ReadyNotifier::take_over(options.ready_fd)? };
    let mut notifier = ReadyNotifier::new(ready, options.pid_file.clone())?;
    let disabled = Disabled::from_env().map_err(|error| Error::new(error.to_string()).with_status(USAGE))?;
    let rules = rules(options).map_err(|error| error.with_status(USAGE))?;
    let max_sockets = max_sockets(descriptor::raise_limit());
    let signals = Signals::block(&[libc::SIGIO]).context("cannot block signals")?;
    let (watch, links) = LinkWatch::start().context("cannot read the interfaces")?;
    let (segment, _) = pontoon_sys::udp::offloads().context("cannot open a socket")?;
    let spawn_config = SpawnConfig {
        settings: Settings {
            max_delay: options.max_delay,
            segment: segment && !disabled.udp_gso,
        },
        require_sandbox: options.require_sandbox,
        disabled,
    };
    let mut relay = Relay::start(
        links,
        options.workers,
        &options.proxies,
        spawn_config,
        max_sockets,
    )?;
    relay.replace(rules).map_err(|error| error.with_status(USAGE))?;
    let kernel = options
        .follow_kernel_routes
        .then(KernelRoutes::start)
        .transpose()?;
    let servers = control::open(options.control.as_deref(), options.metrics.as_ref())?;
    let mut events = Loop {
        options,
        signals,
        servers,
        watch,
        kernel,
        relay,
        stdout: LineQueue::new(PRINTED),
    };
    events.read_kernel_routes()?;
    events.relay.update_derived_rules(Instant::now());
    notifier.notify()?;
    events.run()
}

/// Returns the rules of the command line and of the configuration file.
fn rules(options: &RelayOptions) -> Result<Rules, Error> {
    let mut rules = match &options.config {
        None => Rules::default(),
        Some(path) => {
            let shown = path.display();
            let text =
                std::fs::read_to_string(path).context(format_args!("cannot read configuration {shown}"))?;
            config::parse(&text).map_err(|refused| Error::new(format!("{shown}: {refused}")))?
        }
    };
    for rule in &options.rules {
        rules
            .add(rule.clone())
            .map_err(|conflict| Error::new(conflict.to_string()))?;
    }
    Ok(rules)
}

/// Returns the limit on the sockets of memberships and inputs: half of the descriptor limit. The other half is for outputs
/// (three quarters of it), rings, clients of the control socket, and workers.
fn max_sockets(limit: Rlimit) -> usize {
    let half = limit.maximum.map_or(u64::MAX, |maximum| maximum / 2);
    usize::try_from(half).unwrap_or(usize::MAX)
}

/// Exit status for errors of usage.
const USAGE: u8 = 2;

/// Supervisor's loop of a relay, with its event sources.
struct Loop<'a> {
    options: &'a RelayOptions,
    signals: Signals,
    servers: Vec<Server<Relay>>,
    watch: LinkWatch,
    kernel: Option<KernelRoutes>,
    relay: Relay,
    stdout: LineQueue,
}

impl Loop<'_> {
    fn run(mut self) -> Result<u8, Error> {
        loop {
            self.wait().context("cannot wait for events")?;
            while let Some(signal) = self.signals.take().context("cannot read signals")? {
                match signal.number {
                    libc::SIGHUP => self.reload()?,
                    libc::SIGUSR1 => self.print()?,
                    libc::SIGIO => self.relay.on_packet_signal(),
                    libc::SIGINT | libc::SIGQUIT | libc::SIGTERM => return Ok(0),
                    _ => {}
                }
            }
            if let Some(links) = self.watch.changed().context("cannot read the interfaces")? {
                self.relay.set_links(links);
                self.read_kernel_routes()?;
            }
            let changed = self.kernel.as_ref().map(KernelRoutes::changed).transpose();
            if changed.context("cannot read multicast routes")? == Some(true) {
                self.read_kernel_routes()?;
            }
            self.relay.manage_workers();
            self.relay.update_derived_rules(Instant::now());
            for server in &mut self.servers {
                server.serve(&mut self.relay, Instant::now());
            }
            self.relay.check_rings();
            self.relay.retry(Instant::now());
            self.relay.close_due();
            output::flush();
            self.stdout.flush(std::io::stdout().as_fd(), Instant::now());
        }
    }

    fn wait(&self) -> std::io::Result<()> {
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = vec![readable(self.signals.fd()), readable(self.watch.fd())];
        fds.extend(self.kernel.as_ref().map(KernelRoutes::fd).map(readable));
        fds.extend(self.relay.poll_fds());
        fds.extend(self.servers.iter().flat_map(Server::poll_fds));
        let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
        let writable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT);
        fds.extend(self.stdout.wants_room().then(|| writable(stdout.as_fd())));
        fds.extend(output::wants_room().then(|| writable(stderr.as_fd())));
        let now = Instant::now();
        let retry = self.relay.retry_deadline();
        let clients = self.servers.iter().filter_map(Server::deadline);
        let routes = self.kernel.as_ref().and_then(KernelRoutes::deadline);
        let until = [
            self.relay.next_deadline(),
            self.watch.deadline(),
            routes,
            retry,
            output::next_turn(),
            self.stdout.next_turn(),
        ]
        .into_iter()
        .flatten()
        .chain(clients)
        .min();
        let timeout = until.and_then(|until| Timespec::try_from(until.saturating_duration_since(now)).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the kernel's multicast routes.
    fn read_kernel_routes(&mut self) -> Result<(), Error> {
        if let Some(kernel) = &mut self.kernel {
            let rules = kernel.rules(self.relay.links());
            if let Some(rules) = rules.context("cannot read multicast routes")? {
                self.relay.set_kernel_rules(rules);
            }
        }
        Ok(())
    }

    /// Reloads the configuration file. If it is invalid, the rules stay unchanged.
    fn reload(&mut self) -> Result<(), Error> {
        match rules(self.options).and_then(|rules| self.relay.replace(rules)) {
            Ok(()) => tracing::info!("reloaded: {} rules", self.relay.rules().iter().count()),
            Err(error) => tracing::error!("{error}; rules unchanged"),
        }
        Ok(())
    }

    /// Prints the counters as one line of JSON.
    fn print(&mut self) -> Result<(), Error> {
        let stats = self.relay.stats();
        let mut line = serde_json::to_vec(&stats).map_err(|error| Error::new(error.to_string()))?;
        line.push(b'\n');
        if !self.stdout.put(std::io::stdout().as_fd(), &line) {
            tracing::warn!("the counters are not printed, as standard output is not read");
        }
        Ok(())
    }
}
