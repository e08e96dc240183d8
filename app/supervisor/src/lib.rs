//! Supervisor of `pontoon run` and `pontoon vm`: the process that accesses the host (files, namespaces, netlink, ports). It
//! does not process packets.
//!
//! [`run`] opens and creates resources in this order, and the first failure ends it with one line and removes all that were
//! created: the descriptors, namespaces and addresses that the options name, the state of the host's network, the published
//! ports; then the guest's namespaces and the tap in them, created by the guest's first process (`guest::init`) or by a
//! child that enters an existing namespace (`guest::attach`), which sends the tap's queues to the supervisor; then the
//! engine, forked while the supervisor has one thread; then the command. A virtual machine has no tap and no command: its
//! socket (`guest::machine`) is named by an option. From then on the supervisor waits for events in `watch` and forwards
//! changes.
//!
//! Each child process is killed when the supervisor exits (`PR_SET_PDEATHSIG`), and all processes of the guest are killed
//! when its first process exits, which is process 1 of its PID namespace.

use std::ffi::OsString;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use ipnet::IpNet;
use pontoon_engine::Config;
use pontoon_engine::address_plan::AddressPlan;
use pontoon_process::child::background::{self, Background, Side};
use pontoon_process::child::stdio;
use pontoon_process::descriptor;
use pontoon_process::error::{Context as _, Error};
use pontoon_process::log::{output, panics};
use pontoon_process::netlink::Netlink;
use pontoon_process::ready_notify::ReadyNotifier;
use pontoon_process::signals::Signals;
use pontoon_process::socket_file::SocketFile;
use pontoon_sys::disabled::Disabled;
use pontoon_sys::netns;
use pontoon_sys::tun::TapOffload;
use pontoon_wire::Mac;
use pontoon_worker::stats::StatsTable;
use pontoon_worker::{Attachment, DeciderPlace, DeciderSetup, EngineSetup, TapQueues, Vhost, ledger, pacing};
use rustix::process::Rlimit;
use tracing::level_filters::LevelFilter;

pub mod audit;
pub mod capture;
pub mod config;
mod control;
pub mod doctor;
mod engine;
mod events;
mod guest;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod inherited;
pub mod log_file;
pub mod options;
pub mod policy;
pub mod proxy;
mod setup;
mod statistics;
mod watch;

pub use options::GuestOptions;
use pontoon_host_network as host;
use pontoon_host_network::listeners;
pub use pontoon_host_network::{forward, publish};

use control::{Control, ControlSetup, GuestListeners};
use engine::Engine;
use events::Events;
use forward::Forwards;
use guest::attach::Attached;
use guest::route::GuestRoute;
use guest::socket_helper::SocketHelper;
use guest::{command, init, loopback_ports, machine, tap, vhost};
use host::address_plan::{self, ChosenPlan};
use host::address_watch::AddressWatch;
use host::file_watch::FileWatch;
use host::resolv::{Resolv, ResolvWatch};
use inherited::{InheritedDescriptors, one_use_each};
use options::{Guest, Resolvers};
use statistics::Statistics;
use watch::{GuestKind, Watch};

/// Provides a network to a guest until the guest ends; returns the exit status of the command. The caller's process has one
/// thread only. `set_log_level` sets the log level of that process, or of a child that it forked.
///
/// # Errors
/// A failure of Pontoon, described in one line; all resources that were created are removed.
pub fn run(options: &GuestOptions, set_log_level: fn(LevelFilter)) -> Result<u8, Error> {
    serve(options, set_log_level).map_err(descriptor::explain_exhaustion)
}

fn serve(options: &GuestOptions, set_log_level: fn(LevelFilter)) -> Result<u8, Error> {
    panics::set_hook();
    one_use_each(options)?;
    // SAFETY: this process has opened no descriptor yet, and the options name each number once.
    let inherited = unsafe { InheritedDescriptors::take_over(options)? };
    let background = match fork_to_background(options, &inherited)? {
        Some(Side::Parent(status)) => return Ok(status),
        Some(Side::Child(background)) => Some(background),
        None => None,
    };
    begin_log(options)?;
    let InheritedDescriptors {
        ready,
        exit,
        decider,
        machine,
    } = inherited;
    let mut notifier = ReadyNotifier::new(ready, options.pid_file.clone())?;
    let disabled = Disabled::from_env().map_err(|error| Error::new(error.to_string()).with_status(2))?;
    let offload = tap_offload(options, &disabled);
    let mut files = FileWatch::default();
    let plan = GuestPlan::open(options, machine, &mut files)?;
    let vhost = vhost::choose(options.vhost_net, offload, &disabled)?;
    let host = HostState::read(options, &mut files)?;

    // Children inherit the blocked signals, so that no signal kills one before it handles signals itself.
    let signals = Signals::block(&[]).context("cannot block signals")?;
    let descriptors = descriptor::raise_limit();
    let ports = setup::open_ports(options, &host)?;
    let has_namespace = !matches!(options.guest, Guest::Machine(_));
    let mut forwards = Forwards::new(host.chosen.plan.clone()).permitting_loopback(has_namespace);
    forwards.change(&[], &options.forwards)?;
    let loopback_ports = forwards.close_loopback();
    let ifname = ifname(options, &host.chosen);
    let mut config = config::config(
        options,
        host.chosen,
        host.watch.sources(),
        host.resolv,
        ports.published(),
        forwards.forwards(),
        descriptors,
    );
    let mut sockets = ports.sockets();
    let statistics = Statistics::open(options.workers, options.rules.clone())?;
    let events = setup::open_events(options, config.max_flows, &statistics)?;
    let served = ControlSetup {
        statistics: statistics.clone(),
        forwarder: options.resolvers != Resolvers::None,
        ports,
        forwards,
        events: events.clone(),
        set_log_level,
    };
    let mut control = setup::open_control(options, served, decider)?;

    let link = LinkPlan {
        options,
        config: &config,
        ifname,
        disabled: &disabled,
        descriptors,
        offload,
        vhost,
    };
    let StartedGuest {
        mut guest,
        attachment,
        guest_route,
        guest_mac,
        listeners,
        netns_cookie,
        socket_file: _socket_file,
    } = plan.start(&link)?;
    config.guest_mac = guest_mac;
    sockets.extend(loopback_ports::open(&loopback_ports, &guest)?);
    config.published.extend(loopback_ports);
    let helper = SocketHelper::for_guest(options, &guest, netns_cookie);
    config.proxy = options
        .proxy
        .as_ref()
        .map(|proxy| proxy.open(&config.plan))
        .transpose()?;
    refuse_guest(control.as_mut(), &guest)?;
    let owned = host.watch.owned().to_vec();
    let (table, read) = (statistics.table(), events.as_ref());
    let setup = engine_setup(options, config, owned, table, read, set_log_level)?;
    let mut engine = Engine::start(
        setup,
        sockets,
        attachment,
        helper,
        statistics,
        options.require_sandbox,
    )?;
    engine.set_events(events.clone());
    begin_control(control.as_mut(), listeners, &mut engine);
    if let GuestKind::Command(guest) = &guest {
        guest.prepared()?;
    }
    notifier.notify()?;
    if let Some(status) = begin(&mut guest, &signals)? {
        return Ok(status);
    }
    if options.log_file.is_some() {
        events::ignore_file_size_signal();
    }
    stdio::leave_to_the_command().context("cannot open /dev/null")?;
    background.map(Background::detach).transpose()?;
    let watch = Watch {
        signals,
        exit,
        guest,
        engine,
        addresses: host.watch,
        guest_route,
        files,
        resolvers: host.resolvers,
        asks_host: options.resolvers == Resolvers::Host,
        events,
        control,
    };
    watch.run()
}

/// Begins the log, in its file if the options name one.
fn begin_log(options: &GuestOptions) -> Result<(), Error> {
    output::prepare();
    match &options.log_file {
        Some(to) => to.begin(options.timed_log),
        None => Ok(()),
    }
}

/// Makes the guest's listeners known to the control API, and begins the capture: before the guest sends a frame, so that all
/// frames are captured.
fn begin_control(control: Option<&mut Control>, listeners: Option<GuestListeners>, engine: &mut Engine) {
    if let Some(control) = control {
        if let Some(listeners) = listeners {
            control.set_guest_listeners(listeners);
        }
        control.serve(&mut |update| engine.send(update), Instant::now());
    }
}

/// Forks if the options request a process in the background, which keeps the descriptors that the options name.
fn fork_to_background(
    options: &GuestOptions,
    inherited: &InheritedDescriptors,
) -> Result<Option<Side>, Error> {
    if !options.daemon {
        return Ok(None);
    }
    if matches!(options.guest, Guest::Command { .. }) {
        let wrong = "--daemon is for a guest that exists without the program";
        return Err(Error::new(wrong).advise("--attach").with_status(2));
    }
    background::fork(&inherited.all()).map(Some)
}

/// Returns the offloads to request for the tap: all that neither an option nor `PONTOON_DISABLE` disables.
fn tap_offload(options: &GuestOptions, disabled: &Disabled) -> TapOffload {
    match options.no_offload {
        true => TapOffload::NONE,
        false => TapOffload::all_but(disabled),
    }
}

/// Returns the configuration and descriptors of the engine, with a new ledger of TCP connections.
fn engine_setup(
    options: &GuestOptions,
    config: Config,
    owned: Vec<IpNet>,
    stats: StatsTable,
    events: Option<&Events>,
    set_log_level: fn(LevelFilter),
) -> Result<EngineSetup, Error> {
    let ledger = ledger::SharedLedger::new(options.workers, config.max_flows)
        .context("cannot allocate the shared connection table")?;
    stats
        .set_inherited(true)
        .context("cannot share memory with the engine")?;
    Ok(EngineSetup {
        config,
        owned,
        // The published sockets are added when the engine is forked.
        published: Vec::new(),
        // The channels are added with each start of the engine.
        socket_helper: None,
        raw_icmp: host::open_raw_icmp().context("cannot open raw ICMP sockets")?,
        pacing: pacing::here(options.pacing, options.workers),
        outbound: options.outbound.clone(),
        ledger,
        stats,
        events: events.map(Events::setup).transpose()?,
        rules_generation: Statistics::FIRST_GENERATION,
        set_log_level,
        decider: options.requires_decider().then(|| DeciderSetup {
            deadline: options.decision_deadline(),
            decider: DeciderPlace::Program {
                connected: options.decider_fd.is_some(),
            },
        }),
        restarted: false,
    })
}

/// Starts the command of the guest, if it has one. Returns the exit status if a signal has ended this process instead.
fn begin(guest: &mut GuestKind, signals: &Signals) -> Result<Option<u8>, Error> {
    match guest {
        GuestKind::Attached(attached) => attached.reap(),
        GuestKind::Command(guest) => {
            // A signal that the terminal sent before the command existed ends this process, as it cannot be forwarded.
            let status = signals.fatal().context("cannot read signals")?;
            if status.is_some() {
                return Ok(status);
            }
            guest.go()?;
            // From now on standard error belongs to the command, and the log to its file.
            output::leave_stderr();
        }
        GuestKind::Machine => {}
    }
    Ok(None)
}

/// Returns the engine's link, the IPv6 default route in the guest's namespace that the supervisor adds and removes if
/// it has configured the tap, and the source of the ports on which programs in the namespace listen.
fn attach_tap(
    tap: tap::CreatedTap,
    vhost: Option<Vhost>,
    plan: &AddressPlan,
    configured: bool,
) -> (Attachment, Option<GuestRoute>, Option<GuestListeners>) {
    // Clients are sent to the first address of each family.
    let v4 = plan.v4.as_ref().map(|v4| IpAddr::V4(v4.address.addr()));
    let v6 = plan.v6.as_ref().map(|v6| IpAddr::V6(v6.address.addr()));
    let addresses = v4.into_iter().chain(v6).collect();
    let listeners = tap.listeners.map(|socket| GuestListeners {
        socket,
        ephemeral: tap.ephemeral,
        addresses,
    });
    let route = configured
        .then(|| GuestRoute::new(tap.netlink, tap.index, plan))
        .flatten();
    let attachment = Attachment::Tap(TapQueues {
        queues: tap.queues,
        offload: tap.offload,
        vhost,
    });
    (attachment, route, listeners)
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

/// Refuses clients of the socket files that are processes of the guest.
fn refuse_guest(control: Option<&mut Control>, guest: &GuestKind) -> Result<(), Error> {
    if let Some(control) = control
        && control.has_file()
    {
        control.refuse(guest.namespaces()?);
    }
    Ok(())
}

/// Guest that is to be started; the namespace or socket that the options name is open.
enum GuestPlan<'a> {
    Command {
        argv: &'a [OsString],
        hostname: &'a Option<String>,
        keep_capabilities: bool,
    },
    Namespace {
        attached: Attached,
        configure: bool,
        loopback: bool,
    },
    Machine(Attachment, Option<SocketFile>),
}

/// Settings of the guest's link, from the options and the state of the host.
struct LinkPlan<'a> {
    options: &'a GuestOptions,
    config: &'a Config,
    /// The name of the guest's interface.
    ifname: String,
    disabled: &'a Disabled,
    /// Descriptor limits that the command starts with.
    descriptors: Rlimit,
    offload: TapOffload,
    vhost: Option<Vhost>,
}

/// Guest whose link exists and whose command has not been started.
struct StartedGuest {
    guest: GuestKind,
    attachment: Attachment,
    guest_route: Option<GuestRoute>,
    /// Ethernet address of the guest's interface.
    guest_mac: Mac,
    /// Source of the guest's listening ports, if it has a namespace.
    listeners: Option<GuestListeners>,
    /// Cookie of the guest's network namespace.
    netns_cookie: Option<u64>,
    /// Socket file of a machine, which is removed on drop.
    socket_file: Option<SocketFile>,
}

impl<'a> GuestPlan<'a> {
    /// Opens the namespace or socket of the guest that the options name; `inherited` is the socket of a virtual machine.
    fn open(
        options: &'a GuestOptions,
        inherited: Option<OwnedFd>,
        files: &mut FileWatch,
    ) -> Result<Self, Error> {
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
            Guest::Attach {
                target,
                ifname: _,
                configure,
                loopback,
                stay,
            } => Self::Namespace {
                attached: Attached::open(target, *stay, files)?,
                configure: *configure,
                loopback: *loopback,
            },
            Guest::Machine(machine) => {
                let (attachment, file) = machine::open(machine, inherited, options.workers)?;
                Self::Machine(attachment, file)
            }
        })
    }

    /// Creates the tap, and the namespaces of the command.
    fn start(self, link: &LinkPlan<'_>) -> Result<StartedGuest, Error> {
        let mut configured = true;
        let (guest, tap) = match self {
            Self::Namespace {
                mut attached,
                configure,
                loopback,
            } => {
                configured = configure;
                let tap = attached.make_tap(&tap::TapConfig {
                    configure,
                    loopback,
                    ..link.tap()
                })?;
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
                    resolv_conf: config::resolv_conf(&link.options.resolvers, link.config, &link.ifname),
                    hostname: hostname.clone(),
                    argv: argv.to_vec(),
                    descriptors: link.descriptors,
                    keep_capabilities,
                    filter: !link.disabled.seccomp,
                    require_sandbox: link.options.require_sandbox,
                };
                let (guest, tap) = command::start(&plan)?;
                (GuestKind::Command(guest), tap)
            }
            Self::Machine(attachment, socket_file) => {
                return Ok(StartedGuest {
                    guest: GuestKind::Machine,
                    attachment,
                    guest_route: None,
                    guest_mac: link.config.guest_mac,
                    listeners: None,
                    netns_cookie: None,
                    socket_file,
                });
            }
        };
        let guest_mac = tap.mac;
        let netns_cookie = netns::cookie(&tap.netlink).ok();
        let (attachment, guest_route, listeners) = attach_tap(tap, link.vhost, &link.config.plan, configured);
        Ok(StartedGuest {
            guest,
            attachment,
            guest_route,
            guest_mac,
            listeners,
            netns_cookie,
            socket_file: None,
        })
    }
}

impl LinkPlan<'_> {
    /// Returns the configuration of a tap with the name `ifname`.
    fn tap(&self) -> tap::TapConfig {
        tap::TapConfig {
            ifname: self.ifname.clone(),
            mac: self.options.mac,
            mtu: self.config.mtu,
            plan: self.config.plan.clone(),
            offload: self.offload,
            queues: self.options.workers,
            configure: true,
            loopback: true,
        }
    }
}

/// State of the host's network, and the parts of the configuration that follow from it.
struct HostState {
    chosen: ChosenPlan,
    watch: AddressWatch,
    resolv: Resolv,
    resolvers: Option<ResolvWatch>,
}

impl HostState {
    /// Reads the addresses and resolvers of the host, and begins to watch them for changes.
    fn read(options: &GuestOptions, files: &mut FileWatch) -> Result<Self, Error> {
        host::check_outbound(&options.outbound)?;
        let (watch, network) = AddressWatch::start().context("cannot read the host's addresses")?;
        let mut netlink = Netlink::open().context("cannot open a netlink socket")?;
        let chosen = address_plan::choose(&options.addressing, &network, &mut netlink)?;
        let loopback = config::host_loopback(&options.host_loopback, &chosen.plan);
        address_plan::mappings(&chosen.plan, &loopback, &options.map_host)?;
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
