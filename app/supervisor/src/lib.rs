//! Edge: the process that touches the outside (files, namespaces, netlink, ports) and sees no packet.
//!
//! [`run`] is the whole of it. Everything is looked at and opened in this order, and the first thing that fails ends
//! it with one line and nothing left behind: what the user named (descriptors, namespaces, addresses), the host's
//! network, the published ports; then the guest's namespaces and the tap in them, made by the guest's first process
//! ([`init`]) or by a child that enters an existing namespace ([`attach`]), which sends the tap's queues here; then the
//! engine, forked while there is one thread; then the command. A virtual machine has neither: its socket ([`machine`]) is
//! what the user named. From there on the supervisor sleeps in [`watch`] and passes changes on.
//!
//! Each process dies with the supervisor (`PR_SET_PDEATHSIG`), and everything inside dies with the guest's first
//! process, as that is process 1 of its pid namespace.

use std::ffi::OsString;
use std::time::Instant;

use pontoon_engine::config::{Addresses, V6};
use pontoon_runtime::{Attachment, Setup, Vhost, ledger, pacing};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::tun::TapOffload;
use tracing::level_filters::LevelFilter;

mod attach;
pub mod capture;
mod child_channel;
mod command;
pub mod config;
pub mod control;
mod descriptor;
mod engine;
mod environment;
pub mod error;
mod file;
mod file_watch;
mod guest_route;
mod handshake;
mod host;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod init;
pub mod log_rate_limit;
mod machine;
mod mounts;
mod netlink;
mod network_namespace;
pub mod options;
pub mod output;
mod panics;
mod pid_namespace;
pub mod policy;
pub mod publish;
mod ready_notify;
mod refused;
pub mod relay;
mod resolv;
mod restart_policy;
mod retry;
mod signals;
mod spawn;
mod stderr_pipe;
mod stdio;
mod subnets;
mod tap;
mod terminal;
pub mod termination;
mod userns;
mod vhost;
mod watch;

pub use error::Error;
pub use options::Options;

use attach::Attached;
use control::{Control, Served};
use engine::Engine;
use error::Context as _;
use file_watch::FileWatch;
use guest_route::GuestRoute;
use machine::SocketFile;
use netlink::AddressWatch;
use options::{Guest, Machine, Resolvers, Seat};
use publish::{Families, Ports};
use ready_notify::ReadyNotifier;
use resolv::{Resolv, ResolvWatch};
use signals::Signals;
use watch::{GuestKind, Watch};

/// Gives a guest a network until the guest ends; returns the command's exit status. Call it from the one thread of a
/// process. `set_log_level` sets how much that says, or a child that it forked.
///
/// # Errors
/// Anything of ours that failed, in one line; nothing is left behind.
pub fn run(options: &Options, set_log_level: fn(LevelFilter)) -> Result<u8, Error> {
    panics::log_them();
    output::prepare();
    one_use_each(options)?;
    let mut notifier = ReadyNotifier::new(options.ready_fd, options.pid_file.clone())?;
    let disabled = Disabled::from_env().map_err(|error| Error::new(error.to_string()).with_status(2))?;
    let wish = match options.no_offload {
        true => TapOffload::NONE,
        false => TapOffload::all_but(&disabled),
    };
    let mut files = FileWatch::default();
    let wanted = match &options.guest {
        Guest::Command {
            argv,
            hostname,
            ifname,
            keep_capabilities,
        } => Wanted::Command {
            argv,
            hostname,
            ifname,
            keep_capabilities: *keep_capabilities,
        },
        Guest::Attach { target, ifname } => Wanted::Namespace(Attached::open(target, &mut files)?, ifname),
        Guest::Machine(machine) => {
            let (attachment, file) = machine::open(machine, options.workers)?;
            Wanted::Machine(attachment, file)
        }
    };
    let vhost = vhost::choose(options.vhost_net, wish, &disabled)?;
    let outside = HostState::look(options, &mut files)?;

    // Children inherit the blocked signals, so that none of them dies of one before its time.
    let signals = Signals::block(&[]).context("cannot block signals")?;
    let descriptors = host::raise_descriptor_limit();
    let families = outside.addresses.v6.map_or(Families::V4, |_| Families::Both);
    let mut ports = Ports::new(families);
    publish::check(&options.publish)?;
    ports.change(&[], &options.publish).map_err(Error::from)?;
    let raw_icmp = host::open_raw_icmp();
    let config = config::config(
        options,
        outside.addresses,
        outside.resolv,
        ports.published(),
        descriptors,
    );
    let sockets = ports.sockets();
    let served = Served {
        rules: options.rules.clone(),
        forwarder: options.resolvers != Resolvers::None,
        workers: options.workers,
        ports,
        set_log_level,
    };
    let wanted_control = options.control.is_some() || options.metrics.is_some() || options.pcap.is_some();
    let control =
        wanted_control.then(|| Control::open(options.control.as_deref(), options.metrics.as_ref(), served));
    let mut control = control.transpose()?;
    if let Some((control, capture)) = control.as_mut().zip(options.pcap.as_ref()) {
        control.capture(capture, Instant::now())?;
    }
    let tap = |ifname: &str| tap::Plan {
        ifname: ifname.to_owned(),
        mac: options.mac,
        mtu: options.mtu,
        addresses: config.addresses,
        offload: wish,
        queues: options.workers,
    };

    let _foreground = terminal::Foreground::of_stdin();
    let (guest_kind, (attachment, guest_route), _socket_file) = match wanted {
        Wanted::Namespace(attached, ifname) => {
            let tap = attached.make_tap(&tap(ifname))?;
            let dns = config::dns(config.addresses);
            let dns: Vec<_> = dns.iter().map(ToString::to_string).collect();
            tracing::info!("the guest's DNS: {}", dns.join(", "));
            (
                GuestKind::Attached(attached),
                take_up(tap, vhost, config.addresses),
                None,
            )
        }
        Wanted::Command {
            argv,
            hostname,
            ifname,
            keep_capabilities,
        } => {
            let plan = init::Plan {
                tap: tap(ifname),
                resolv_conf: config::resolv_conf(&options.resolvers, &config),
                hostname: hostname.clone(),
                argv: argv.to_vec(),
                descriptors,
                keep_capabilities,
                filter: !disabled.seccomp,
                require_filter: options.require_sandbox,
            };
            let (guest, tap) = command::start(&plan)?;
            (
                GuestKind::Command(guest),
                take_up(tap, vhost, config.addresses),
                None,
            )
        }
        Wanted::Machine(attachment, file) => (GuestKind::Machine, (attachment, None), file),
    };
    if let Some(control) = control.as_mut().filter(|_| options.control.is_some()) {
        control.refuse(guest_kind.pid_namespace()?);
    }
    let owned = outside.watch.owned().to_vec();
    let ledger = ledger::Shared::new(options.workers, config.max_flows)
        .context("cannot make room for the ledger of connections")?;
    let setup = Setup {
        config,
        owned,
        // They are handed over with the fork.
        published: Vec::new(),
        raw_icmp,
        pacing: pacing::here(options.pacing, options.workers),
        outbound: options.outbound.clone(),
        ledger,
        set_log_level,
    };
    let mut engine = Engine::start(setup, sockets, attachment, options.require_sandbox)?;
    if let Some(control) = &mut control {
        // Before the guest does anything, so that a capture has all of it.
        control.serve(&mut |update| engine.send(update), Instant::now());
    }
    if let GuestKind::Command(guest) = &guest_kind {
        guest.prepared()?;
    }
    notifier.notify()?;
    if let GuestKind::Command(guest) = &guest_kind {
        // The terminal's are handed on to nobody: the command would not know of them.
        if let Some(status) = signals.deadly().context("cannot read signals")? {
            return Ok(status);
        }
        guest.go()?;
    }
    stdio::leave_to_the_command().context("cannot open /dev/null")?;
    let watch = Watch {
        signals,
        guest: guest_kind,
        engine,
        addresses: outside.watch,
        guest_route,
        files,
        resolvers: outside.resolvers,
        asks_host: options.resolvers == Resolvers::Host,
        control,
    };
    watch.run()
}

/// The engine's link, and what the supervisor keeps of the guest's namespace.
fn take_up(tap: tap::Made, vhost: Option<Vhost>, addresses: Addresses) -> (Attachment, Option<GuestRoute>) {
    let route = |v6: V6| GuestRoute::new(tap.netlink, tap.index, v6.gateway);
    let attachment = Attachment::Tap {
        queues: tap.queues,
        offload: tap.offload,
        vhost,
    };
    (attachment, addresses.v6.map(route))
}

/// Each descriptor that was handed over has one use.
fn one_use_each(options: &Options) -> Result<(), Error> {
    match (&options.guest, options.ready_fd) {
        (
            Guest::Machine(Machine {
                seat: Seat::Descriptor(number),
                ..
            }),
            Some(ready),
        ) if *number == ready => {
            Err(Error::new(format!("--fd and --ready-fd are both {ready}")).with_status(2))
        }
        _ => Ok(()),
    }
}

/// The guest to be started.
enum Wanted<'a> {
    Command {
        argv: &'a [OsString],
        hostname: &'a Option<String>,
        ifname: &'a str,
        keep_capabilities: bool,
    },
    Namespace(Attached, &'a str),
    Machine(Attachment, Option<SocketFile>),
}

/// The state of the host's network, and the configuration that follows from it.
struct HostState {
    addresses: Addresses,
    watch: AddressWatch,
    resolv: Resolv,
    resolvers: Option<ResolvWatch>,
}

impl HostState {
    fn look(options: &Options, files: &mut FileWatch) -> Result<Self, Error> {
        if let Some(outbound) = &options.outbound {
            host::check_outbound(outbound)?;
        }
        let (watch, network) = AddressWatch::start().context("cannot read the host's addresses")?;
        let choice = subnets::choose(options.ipv4, options.ipv6, &network)?;
        let addresses = choice.addresses;
        if choice.moved.v4 {
            tracing::info!(
                "the host uses 10.0.2.0/24, so the guest gets {}",
                addresses.v4.subnet
            );
        }
        if let Some(v6) = addresses.v6.filter(|_| choice.moved.v6) {
            tracing::info!(
                "the host uses fd70:6f6e:746f::/64, so the guest gets {}",
                v6.subnet
            );
        }
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
            addresses,
            watch,
            resolv,
            resolvers,
        })
    }
}
