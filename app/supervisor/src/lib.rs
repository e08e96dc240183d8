//! The supervisor: the process that accesses the host (files, namespaces, netlink, ports). It does not process packets.
//!
//! [`run`] sets everything up in this order, and the first failure ends it with one line and removes everything that was
//! created: the descriptors, namespaces and addresses that the options name, the state of the host's network, the published
//! ports; then the guest's namespaces and the tap in them, created by the guest's first process (`guest::init`) or by a child
//! that enters an existing namespace (`guest::attach`), which sends the tap's queues to the supervisor; then the engine, forked
//! while the supervisor has one thread; then the command. A virtual machine has no tap and no command: its socket
//! (`guest::machine`) is named by an option. From then on the supervisor waits in `watch` and forwards changes.
//!
//! Each process is killed when the supervisor exits (`PR_SET_PDEATHSIG`), and all processes of the guest are killed when its
//! first process exits, as that is process 1 of its PID namespace.

use std::ffi::OsString;
use std::time::Instant;

use ipnet::IpNet;
use pontoon_engine::Config;
use pontoon_engine::address_plan::AddressPlan;
use pontoon_process::child::stdio;
use pontoon_process::descriptor;
use pontoon_process::error::{Context as _, Error};
use pontoon_process::log::{output, panics};
use pontoon_process::netlink::Netlink;
use pontoon_process::ready_notify::ReadyNotifier;
use pontoon_process::signals::Signals;
use pontoon_process::socket_file::SocketFile;
use pontoon_sys::disabled::Disabled;
use pontoon_sys::tun::TapOffload;
use pontoon_worker::stats::StatsTable;
use pontoon_worker::{Attachment, EngineSetup, TapQueues, Vhost, ledger, pacing};
use rustix::process::Rlimit;
use tracing::level_filters::LevelFilter;

pub mod capture;
pub mod config;
mod control;
mod engine;
mod guest;
mod host;
#[cfg(any(test, fuzzing))]
pub mod hostile;
pub mod options;
pub mod policy;
pub mod publish;
mod statistics;
mod watch;

pub use options::GuestOptions;

use control::{Control, Served};
use engine::Engine;
use guest::attach::Attached;
use guest::route::GuestRoute;
use guest::{command, init, machine, tap, terminal, vhost};
use host::address_plan::{self, ChosenPlan};
use host::address_watch::AddressWatch;
use host::file_watch::FileWatch;
use host::resolv::{Resolv, ResolvWatch};
use options::{Guest, Machine, MachineSocket, Resolvers};
use publish::{Families, Ports};
use statistics::Statistics;
use watch::{GuestKind, Watch};

/// Provides a network to a guest until the guest ends; returns the command's exit status. To be called from the only thread
/// of a process. `set_log_level` sets the log level of that process, or of a child that it forked.
///
/// # Errors
/// Any failure of Pontoon, in one line; everything that was created is removed.
pub fn run(options: &GuestOptions, set_log_level: fn(LevelFilter)) -> Result<u8, Error> {
    panics::set_hook();
    output::prepare();
    one_use_each(options)?;
    // SAFETY: this process has opened no descriptor yet, and the options name the number once.
    let ready = unsafe { ReadyNotifier::take_over(options.ready_fd)? };
    let mut notifier = ReadyNotifier::new(ready, options.pid_file.clone())?;
    let disabled = Disabled::from_env().map_err(|error| Error::new(error.to_string()).with_status(2))?;
    let offload = tap_offload(options, &disabled);
    let mut files = FileWatch::default();
    let plan = GuestPlan::open(options, &mut files)?;
    let vhost = vhost::choose(options.vhost_net, offload, &disabled)?;
    let host = HostState::read(options, &mut files)?;

    // Children inherit the blocked signals, so that no signal kills one before it handles signals itself.
    let signals = Signals::block(&[]).context("cannot block signals")?;
    let descriptors = descriptor::raise_limit();
    let ports = publish_ports(options, &host.chosen.plan)?;
    let ifname = ifname(options, &host.chosen);
    let config = config::config(options, host.chosen, host.resolv, ports.published(), descriptors);
    let sockets = ports.sockets();
    let statistics = Statistics::open(options.workers, options.rules.clone())?;
    let mut control = open_control(options, statistics.clone(), ports, set_log_level)?;

    let _foreground = terminal::Foreground::of_stdin();
    let link = LinkPlan {
        options,
        config: &config,
        ifname,
        disabled: &disabled,
        descriptors,
        offload,
        vhost,
    };
    let Started {
        mut guest,
        attachment,
        guest_route,
        socket_file: _socket_file,
    } = plan.start(&link)?;
    if let Some(control) = control.as_mut().filter(|_| options.control.is_some()) {
        control.refuse(guest.pid_namespace()?);
    }
    let sources = config.host;
    let owned = host.watch.owned().to_vec();
    let setup = engine_setup(options, config, owned, statistics.table(), set_log_level)?;
    let mut engine = Engine::start(setup, sockets, attachment, statistics, options.require_sandbox)?;
    if let Some(control) = &mut control {
        // Before the guest sends anything, so that a capture has all of it.
        control.serve(&mut |update| engine.send(update), Instant::now());
    }
    if let GuestKind::Command(guest) = &guest {
        guest.prepared()?;
    }
    notifier.notify()?;
    if let GuestKind::Command(guest) = &mut guest {
        // A signal of the terminal is not forwarded later: the command did not exist when it was sent.
        if let Some(status) = signals.fatal().context("cannot read signals")? {
            return Ok(status);
        }
        guest.go()?;
    }
    stdio::leave_to_the_command().context("cannot open /dev/null")?;
    let watch = Watch {
        signals,
        guest,
        engine,
        addresses: host.watch,
        sources,
        guest_route,
        files,
        resolvers: host.resolvers,
        asks_host: options.resolvers == Resolvers::Host,
        control,
    };
    watch.run()
}

/// Returns the offloads of the tap: all that are not disabled.
fn tap_offload(options: &GuestOptions, disabled: &Disabled) -> TapOffload {
    match options.no_offload {
        true => TapOffload::NONE,
        false => TapOffload::all_but(disabled),
    }
}

/// Returns the input of the engine, with a new table of connections.
fn engine_setup(
    options: &GuestOptions,
    config: Config,
    owned: Vec<IpNet>,
    stats: StatsTable,
    set_log_level: fn(LevelFilter),
) -> Result<EngineSetup, Error> {
    let ledger = ledger::SharedLedger::new(options.workers, config.max_flows)
        .context("cannot allocate the shared connection table")?;
    Ok(EngineSetup {
        config,
        owned,
        // The engine takes the sockets over when it is forked.
        published: Vec::new(),
        raw_icmp: host::open_raw_icmp(),
        pacing: pacing::here(options.pacing, options.workers),
        outbound: options.outbound.clone(),
        ledger,
        stats,
        rules_generation: Statistics::FIRST_GENERATION,
        set_log_level,
    })
}

/// Opens the host sockets of the published ports.
fn publish_ports(options: &GuestOptions, plan: &AddressPlan) -> Result<Ports, Error> {
    let families = match (&plan.v4, &plan.v6) {
        (Some(_), Some(_)) => Families::Both,
        (_, None) => Families::V4,
        (None, Some(_)) => Families::V6,
    };
    let mut ports = Ports::new(families);
    publish::check(&options.publish)?;
    ports.change(&[], &options.publish).map_err(Error::from)?;
    Ok(ports)
}

/// Opens the control socket and the address of the metrics, and begins the capture, as far as the options ask for them. A
/// capture needs the control API even without a socket.
fn open_control(
    options: &GuestOptions,
    statistics: Statistics,
    ports: Ports,
    set_log_level: fn(LevelFilter),
) -> Result<Option<Control>, Error> {
    if options.control.is_none() && options.metrics.is_none() && options.pcap.is_none() {
        return Ok(None);
    }
    let served = Served {
        statistics,
        forwarder: options.resolvers != Resolvers::None,
        ports,
        set_log_level,
    };
    let mut control = Control::open(options.control.as_deref(), options.metrics.as_ref(), served)?;
    if let Some(capture) = &options.pcap {
        control.capture(capture, Instant::now())?;
    }
    Ok(Some(control))
}

/// Returns the engine's link, and the route that the supervisor maintains in the guest's namespace.
fn attach_tap(tap: tap::Made, vhost: Option<Vhost>, plan: &AddressPlan) -> (Attachment, Option<GuestRoute>) {
    let route = GuestRoute::new(tap.netlink, tap.index, plan);
    let attachment = Attachment::Tap(TapQueues {
        queues: tap.queues,
        offload: tap.offload,
        vhost,
    });
    (attachment, route)
}

/// Returns the name of the guest's interface: the given one, or that of the host's interface whose addresses it has.
fn ifname(options: &GuestOptions, chosen: &ChosenPlan) -> String {
    let given = match &options.guest {
        Guest::Command { ifname, .. } | Guest::Attach { ifname, .. } => ifname.clone(),
        Guest::Machine(_) => None,
    };
    let of_host = chosen.interface.as_ref().map(|interface| interface.name.clone());
    given.or(of_host).unwrap_or_else(|| "tap0".to_owned())
}

/// Checks that no descriptor is named by two options.
fn one_use_each(options: &GuestOptions) -> Result<(), Error> {
    match (&options.guest, options.ready_fd) {
        (
            Guest::Machine(Machine {
                socket: MachineSocket::Descriptor(number),
                ..
            }),
            Some(ready),
        ) if *number == ready => {
            Err(Error::new(format!("--fd and --ready-fd are both {ready}")).with_status(2))
        }
        _ => Ok(()),
    }
}

/// The guest to be started, with the descriptors that the options name open.
enum GuestPlan<'a> {
    Command {
        argv: &'a [OsString],
        hostname: &'a Option<String>,
        keep_capabilities: bool,
    },
    Namespace(Attached),
    Machine(Attachment, Option<SocketFile>),
}

/// Settings of the guest's link.
struct LinkPlan<'a> {
    options: &'a GuestOptions,
    config: &'a Config,
    /// The name of the guest's interface.
    ifname: String,
    disabled: &'a Disabled,
    /// The descriptor limits that the command gets.
    descriptors: Rlimit,
    offload: TapOffload,
    vhost: Option<Vhost>,
}

/// A guest whose link exists. A command does not run yet.
struct Started {
    guest: GuestKind,
    attachment: Attachment,
    guest_route: Option<GuestRoute>,
    /// Removed on drop.
    socket_file: Option<SocketFile>,
}

impl<'a> GuestPlan<'a> {
    /// Opens the namespace or socket that the options name.
    fn open(options: &'a GuestOptions, files: &mut FileWatch) -> Result<Self, Error> {
        Ok(match &options.guest {
            Guest::Command {
                argv,
                hostname,
                ifname: _,
                keep_capabilities,
            } => Self::Command {
                argv,
                hostname,
                keep_capabilities: *keep_capabilities,
            },
            Guest::Attach { target, ifname: _ } => Self::Namespace(Attached::open(target, files)?),
            Guest::Machine(machine) => {
                let (attachment, file) = machine::open(machine, options.workers)?;
                Self::Machine(attachment, file)
            }
        })
    }

    /// Creates the tap, and the namespaces of a command.
    fn start(self, link: &LinkPlan<'_>) -> Result<Started, Error> {
        let (guest, tap) = match self {
            Self::Namespace(attached) => {
                let tap = attached.make_tap(&link.tap())?;
                let dns: Vec<_> = link.config.plan.dns().map(|dns| dns.to_string()).collect();
                tracing::info!("the guest's DNS: {}", dns.join(", "));
                (GuestKind::Attached(attached), tap)
            }
            Self::Command {
                argv,
                hostname,
                keep_capabilities,
            } => {
                let plan = init::InitConfig {
                    tap: link.tap(),
                    resolv_conf: config::resolv_conf(&link.options.resolvers, link.config),
                    hostname: hostname.clone(),
                    argv: argv.to_vec(),
                    descriptors: link.descriptors,
                    keep_capabilities,
                    filter: !link.disabled.seccomp,
                    require_filter: link.options.require_sandbox,
                };
                let (guest, tap) = command::start(&plan)?;
                (GuestKind::Command(guest), tap)
            }
            Self::Machine(attachment, socket_file) => {
                return Ok(Started {
                    guest: GuestKind::Machine,
                    attachment,
                    guest_route: None,
                    socket_file,
                });
            }
        };
        let (attachment, guest_route) = attach_tap(tap, link.vhost, &link.config.plan);
        Ok(Started {
            guest,
            attachment,
            guest_route,
            socket_file: None,
        })
    }
}

impl LinkPlan<'_> {
    /// Returns the settings of a tap.
    fn tap(&self) -> tap::TapConfig {
        tap::TapConfig {
            ifname: self.ifname.clone(),
            mac: self.options.mac,
            mtu: self.config.mtu,
            plan: self.config.plan.clone(),
            offload: self.offload,
            queues: self.options.workers,
        }
    }
}

/// The state of the host's network, and the configuration that follows from it.
struct HostState {
    chosen: ChosenPlan,
    watch: AddressWatch,
    resolv: Resolv,
    resolvers: Option<ResolvWatch>,
}

impl HostState {
    /// Reads addresses and resolvers of the host, and watches for changes.
    fn read(options: &GuestOptions, files: &mut FileWatch) -> Result<Self, Error> {
        host::check_outbound(&options.outbound)?;
        let (watch, network) = AddressWatch::start().context("cannot read the host's addresses")?;
        let mut netlink = Netlink::open().context("cannot open a netlink socket")?;
        let chosen = address_plan::choose(&options.addressing, &network, &mut netlink)?;
        let (resolv, resolvers) = match &options.resolvers {
            Resolvers::Host => {
                let (watch, resolv) = ResolvWatch::start(files);
                (resolv, Some(watch))
            }
            Resolvers::Given(servers) => {
                let command = matches!(options.guest, Guest::Command { .. });
                let (watch, host) = command.then(|| ResolvWatch::start(files)).unzip();
                let resolv = Resolv {
                    servers: servers.clone(),
                    ..host.unwrap_or_else(Resolv::host)
                };
                (resolv, watch)
            }
            Resolvers::None => (Resolv::default(), None),
        };
        Ok(Self {
            chosen,
            watch,
            resolv,
            resolvers,
        })
    }
}
