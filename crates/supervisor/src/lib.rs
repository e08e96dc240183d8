//! Edge: the process that touches the outside (files, namespaces, netlink, ports) and sees no packet.
//!
//! [`run`] is the whole of it. Everything is looked at and opened in this order, and the first thing that fails ends
//! it with one line and nothing left behind: what the user named (descriptors, namespaces, addresses), the host's
//! network, the published ports; then the guest's namespaces and the tap in them, made by the guest's first process
//! ([`init`]) or by a child that enters an existing namespace ([`attach`]), which sends the tap's queues here;
//! then the engine, forked while there is one thread; then the command. From there on the supervisor sleeps in
//! [`watch`] and passes changes on.
//!
//! Each process dies with the supervisor (`PR_SET_PDEATHSIG`), and everything inside dies with the guest's first
//! process, as that is process 1 of its pid namespace.

use std::ffi::OsString;

use pontoon_engine::config::Addresses;
use pontoon_runtime::{Attachment, Setup};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::tun::TapOffload;

mod announce;
mod attach;
mod command;
pub mod config;
mod engine;
pub mod error;
mod handshake;
mod host;
mod init;
mod mounts;
mod netlink;
pub mod options;
pub mod publish;
mod resolv;
mod signals;
mod spawn;
mod stdio;
mod subnets;
mod tap;
mod terminal;
mod userns;
mod watch;

pub use error::Error;
pub use options::Options;

use announce::Announcement;
use attach::Attached;
use engine::Engine;
use error::Context as _;
use netlink::AddressWatch;
use options::{Guest, Resolvers};
use publish::Families;
use resolv::{Resolv, ResolvWatch};
use signals::Signals;
use watch::{Behind, Watch};

/// Gives a guest a network until the guest ends; returns the command's exit status. Call it from the one thread of a
/// process.
///
/// # Errors
/// Anything of ours that failed, in one line; nothing is left behind.
pub fn run(options: &Options) -> Result<u8, Error> {
    let mut announcement = Announcement::new(options.ready_fd, options.pid_file.clone())?;
    let wish = offload(options)?;
    let wanted = match &options.guest {
        Guest::Command { argv, hostname } => Wanted::Command { argv, hostname },
        Guest::Attach(target) => Wanted::Namespace(Attached::open(target)?),
    };
    let outside = Outside::look(options)?;

    // Children inherit the blocked signals, so that none of them dies of one before its time.
    let signals = Signals::block(&[]).context("cannot block signals")?;
    let descriptors = host::raise_descriptor_limit();
    let families = outside.addresses.v6.map_or(Families::V4, |_| Families::Both);
    let sockets = publish::open(&options.publish, families)?;
    let raw_icmp = host::open_raw_icmp();
    let config = config::config(
        options,
        outside.addresses,
        outside.resolv,
        sockets.published,
        descriptors,
    );
    let plan = tap::Plan {
        ifname: options.ifname.clone(),
        mac: options.mac,
        mtu: options.mtu,
        addresses: config.addresses,
        offload: wish,
        queues: options.workers,
    };

    let _foreground = terminal::Foreground::of_stdin();
    let (behind, queues, offload) = match wanted {
        Wanted::Namespace(attached) => {
            let (queues, offload) = attached.make_tap(&plan)?;
            let dns = config::dns(config.addresses);
            let dns: Vec<_> = dns.iter().map(ToString::to_string).collect();
            tracing::info!("the guest's DNS: {}", dns.join(", "));
            (Behind::Attached(attached), queues, offload)
        }
        Wanted::Command { argv, hostname } => {
            let plan = init::Plan {
                tap: plan,
                resolv_conf: config::resolv_conf(&options.resolvers, &config),
                hostname: hostname.clone(),
                argv: argv.to_vec(),
                descriptors,
            };
            let (guest, queues, offload) = command::start(&plan)?;
            (Behind::Command(guest), queues, offload)
        }
    };
    let owned = outside.watch.owned().to_vec();
    let setup = |supervisor| Setup {
        config,
        owned,
        published: sockets.sockets,
        raw_icmp,
        supervisor,
        pacing: options.pacing,
        outbound: options.outbound.clone(),
    };
    let engine = Engine::start(setup, Attachment::Tap { queues, offload })?;
    engine.ready()?;
    if let Behind::Command(guest) = &behind {
        guest.prepared()?;
    }
    announcement.announce()?;
    if let Behind::Command(guest) = &behind {
        guest.go()?;
    }
    stdio::leave_to_the_command().context("cannot open /dev/null")?;
    let watch = Watch {
        signals,
        behind,
        engine,
        addresses: outside.watch,
        resolvers: outside.resolvers,
    };
    watch.run()
}

/// What is to be behind the link.
enum Wanted<'a> {
    Command {
        argv: &'a [OsString],
        hostname: &'a Option<String>,
    },
    Namespace(Attached),
}

/// What the host has, and what follows from it.
struct Outside {
    addresses: Addresses,
    watch: AddressWatch,
    resolv: Resolv,
    resolvers: Option<ResolvWatch>,
}

impl Outside {
    fn look(options: &Options) -> Result<Self, Error> {
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
                let (watch, resolv) = ResolvWatch::start().context("cannot watch the host's resolvers")?;
                (resolv, Some(watch))
            }
            Resolvers::Given(servers) => {
                let servers = servers.clone();
                (
                    Resolv {
                        servers,
                        ..Resolv::host()
                    },
                    None,
                )
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

/// The offloads to ask the tap for.
fn offload(options: &Options) -> Result<TapOffload, Error> {
    let disabled = Disabled::from_env().map_err(|error| Error::new(error.to_string()).with_status(2))?;
    Ok(if options.no_offload {
        TapOffload::NONE
    } else {
        TapOffload::all_but(&disabled)
    })
}
