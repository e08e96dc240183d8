//! Definitions of the command line's verbs, arguments and options.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::Styles;
use clap::{ArgAction, ArgGroup, Args, Parser, Subcommand, ValueEnum, value_parser};
use pontoon_control::reply::Level;
use pontoon_engine::egress::Match;
use pontoon_process::ready_notify::PidFile;
use pontoon_relay::Rule;
use pontoon_relay::proxy::Proxy;
use pontoon_supervisor::capture::Capture;
use pontoon_supervisor::forward::Forward;
use pontoon_supervisor::options::{Target, VhostNet};
use pontoon_supervisor::publish::Publish;
use pontoon_worker::MachineProtocol;

use crate::completions::CompletionsArgs;
use crate::man::ManArgs;
use crate::values;
pub(crate) use ctl::{FlowsCommand, PolicyCommand};
pub(crate) use network::{NetworkArgs, OutboundSource, Resolver};

/// User-mode networking for namespaces, microVMs and unikernels.
#[derive(Debug, Parser)]
#[command(name = "pontoon", version, styles = Styles::plain(), disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command in its own network namespace, without privileges
    Run(Box<RunArgs>),
    /// Provide a network to a virtual machine or a unikernel
    Vm(Box<VmArgs>),
    /// Inspect and change a running instance
    Ctl(CtlArgs),
    /// Show the flows of a running instance and their rates
    Top(TopArgs),
    /// Relay multicast between interfaces
    Relay(Box<RelayArgs>),
    /// Run with the command line of another program, such as pasta
    Compat(CompatArgs),
    /// Check what this host permits, and show how to fix what prevents a start
    Doctor(DoctorArgs),
    /// Compare network stacks on this machine (runs pontoon-bench)
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Print manual pages, or write them to a directory
    Man(ManArgs),
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
}

/// Examples first, then the options, one line each.
pub(crate) const RUN_HELP: &str = "\
Run a command in its own network namespace. Files and Unix sockets are not isolated: see docs/cookbook.md.

  pontoon run -- curl https://example.org       a command with a network of its own
  pontoon run -p 8080:80 -- nginx               port 80 inside is port 8080 of the host
  pontoon run --host-loopback -- psql -h 10.0.2.2    the host's loopback is the gateway

{usage-heading} {usage}

{options}

The usual options are listed by -h, all of them by --help.
Exit status: the command's, or 128+n if signal n killed it; 126, 127: it cannot run; 1 on failure; 2 for wrong usage.
";

#[derive(Args, Debug)]
#[command(help_template = RUN_HELP, override_usage = "pontoon run [OPTIONS] [--] [CMD...]    (no CMD: your shell)")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    /// Use an existing network namespace, until it is removed
    #[arg(long, value_name = "PID|PATH", value_parser = values::target, conflicts_with_all = ["command", "hostname"])]
    pub(crate) attach: Option<Target>,
    /// Name of the guest's interface [default: tap0, or that of host:IFACE]
    #[arg(long, value_name = "NAME", value_parser = values::ifname)]
    pub(crate) ifname: Option<String>,
    /// Attach to the tap as it is, or create it without addresses: another program configures it
    #[arg(long, hide_short_help = true, requires = "attach")]
    pub(crate) no_configure: bool,
    /// Bring the loopback interface up, which --no-configure leaves as it is
    #[arg(long, hide_short_help = true, requires = "no_configure")]
    pub(crate) bring_up_loopback: bool,
    /// Continue in the background when the network is ready
    #[arg(long, hide_short_help = true, requires = "attach")]
    pub(crate) daemon: bool,
    /// Do not exit when the namespace's process exits or its file is removed
    #[arg(long, hide_short_help = true, requires = "attach")]
    pub(crate) stay: bool,
    /// Host name inside
    #[arg(long, value_name = "NAME", value_parser = values::hostname)]
    pub(crate) hostname: Option<String>,
    /// As root: keep the host's capabilities for the command
    #[arg(long, conflicts_with = "attach")]
    pub(crate) keep_capabilities: bool,
    /// Use the kernel's vhost-net: auto, on or off
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "off",
        value_parser = values::one_of(values::VHOST_NETS),
        hide_possible_values = true
    )]
    pub(crate) vhost_net: VhostNet,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, hide = true)]
    pub(crate) command: Vec<OsString>,
}

/// As in [`RUN_HELP`].
pub(crate) const VM_HELP: &str = "\
{about}

  pontoon vm --socket /tmp/net --protocol stream     wait for QEMU, one guest after the other
  qemu-system-x86_64 ... -netdev stream,id=n,server=off,addr.type=unix,addr.path=/tmp/net -device virtio-net,netdev=n
  pontoon vm --socket /tmp/net --protocol vhost-user the same in the guest's memory: docs/vm.md has QEMU's options

{usage-heading} {usage}

{options}

The usual options are listed by -h, all of them by --help.
Exit status: 0 when the guest has gone and no other can come, or after a signal; 1 on failure, 2 for wrong usage.
";

#[derive(Args, Debug)]
#[command(
    help_template = VM_HELP,
    override_usage = "pontoon vm (--socket PATH | --fd N) --protocol PROTOCOL [OPTIONS]",
    group = ArgGroup::new("where").args(["socket", "fd"]).required(true)
)]
pub(crate) struct VmArgs {
    /// Listen on a Unix socket here; of several, the first free one
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Vec<PathBuf>,
    /// Use this socket, connected or listening
    #[arg(long, value_name = "N", value_parser = value_parser!(i32).range(3..))]
    pub(crate) fd: Option<i32>,
    /// Protocol of the socket
    #[arg(long, value_name = "PROTOCOL", value_parser = values::machine_protocol())]
    pub(crate) protocol: MachineProtocol,
    /// Exit after the first guest
    #[arg(long)]
    pub(crate) one_off: bool,
    /// Continue in the background when guests can connect
    #[arg(long, hide_short_help = true)]
    pub(crate) daemon: bool,
    /// Host name that the guest gets by DHCP
    #[arg(long, value_name = "NAME", value_parser = values::hostname)]
    pub(crate) hostname: Option<String>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
}

// Options that the guests of all verbs have in common. (A doc comment would become the first line of the help text.)
/// Readiness notification and logging, for all verbs that keep running.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// Write a line to descriptor N when the network is ready
    #[arg(long, value_name = "N", value_parser = value_parser!(i32).range(3..))]
    pub(crate) ready_fd: Option<i32>,
    /// Write the process id when the network is ready
    #[arg(long, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,
    /// Keep the pid file at the end
    #[arg(long, hide_short_help = true, requires = "pid_file")]
    pub(crate) keep_pid_file: bool,
    /// Log errors only
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Log more; twice, everything
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,
    /// Log format: text or json
    #[arg(
        long,
        value_name = "FORM",
        default_value = "text",
        value_enum,
        hide_possible_values = true
    )]
    pub(crate) log_format: LogFormat,
}

impl ReportArgs {
    /// Returns the file of `--pid-file`.
    pub(crate) fn pid_file(&self) -> Option<PidFile> {
        self.pid_file.clone().map(|path| PidFile {
            path,
            keep: self.keep_pid_file,
        })
    }
}

#[derive(Args, Debug)]
pub(crate) struct CtlArgs {
    /// The socket that `pontoon run`, `vm` or `relay` listens on by --control
    #[arg(long, value_name = "PATH")]
    pub(crate) control: PathBuf,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: CtlCommand,
}

/// As in [`RUN_HELP`].
const DOCTOR_HELP: &str = "\
{about}

{usage-heading} {usage}

{options}

Each check is one line: its name; ok, note, loss, failure or skipped; what was found. Lines with the consequence and the
fix follow a finding. Run it as the user, and in the container or service, in which Pontoon is to run.
Exit status: 0 if there is no loss; 1 if Pontoon works with losses; 2 if `pontoon run` does not work, or for wrong usage.
";

#[derive(Args, Debug)]
#[command(help_template = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    /// Print JSON, as docs/doctor.md describes it
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// The socket that `pontoon run` or `vm` listens on by --control
    #[arg(long, value_name = "PATH")]
    pub(crate) control: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlCommand {
    /// Show counters since the start, and current flows and memory
    Stats,
    /// Show the egress rules and the number of matches of each
    #[command(args_conflicts_with_subcommands = true)]
    Policy {
        /// Replace the rules by those of this TOML file
        #[arg(long, value_name = "FILE")]
        load: Option<PathBuf>,
        #[command(subcommand)]
        command: Option<PolicyCommand>,
    },
    /// List flows, or end them: TCP connections, UDP endpoints, echo ids
    Flows(FlowArgs),
    /// Show events of flows as they happen: opened, closed, refused, ...
    Events(EventArgs),
    /// Add, remove and list published ports
    #[command(subcommand)]
    Publish(PublishCommand),
    /// Add, remove and list ports at which the guest reaches ports of the host
    #[command(subcommand)]
    GuestForward(GuestForwardCommand),
    /// Add, remove and list rules of `pontoon relay`, and show their counters
    #[command(subcommand)]
    Relay(RelayCommand),
    /// Start or stop a capture of the guest's link
    #[command(subcommand)]
    Capture(CaptureCommand),
    /// Show or set the log level
    LogLevel {
        /// error, warn, info, debug or trace
        #[arg(value_name = "LEVEL", value_parser = values::level)]
        level: Option<Level>,
    },
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct FlowArgs {
    #[command(subcommand)]
    pub(crate) command: Option<FlowsCommand>,
    #[arg(
        long,
        value_name = "TO",
        help = "Only flows to this destination: CIDR[:PORTS][/tcp|/udp|/icmp]"
    )]
    pub(crate) to: Option<Match>,
    /// Sort by age, up, down or bytes, largest first; or by remote address
    #[arg(
        long,
        value_name = "ORDER",
        default_value = "bytes",
        value_enum,
        hide_possible_values = true
    )]
    pub(crate) sort: FlowOrder,
    /// Show at most N flows
    #[arg(long, value_name = "N", conflicts_with = "follow")]
    pub(crate) limit: Option<usize>,
    /// Report begin and end of flows, checking once a second
    #[arg(long)]
    pub(crate) follow: bool,
}

#[derive(Args, Debug)]
pub(crate) struct EventArgs {
    #[arg(
        long = "type",
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = ["start", "opened", "decided", "peer", "refused", "closed", "lost", "end"],
        hide_possible_values = true,
        help = "Only events of these types: opened, decided, peer, refused, closed, lost"
    )]
    pub(crate) kind: Vec<String>,
    /// Only events of flows of these protocols: tcp, udp, icmp
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = ["tcp", "udp", "icmp"],
        hide_possible_values = true
    )]
    pub(crate) protocol: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FlowOrder {
    Age,
    Up,
    Down,
    Bytes,
    Remote,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PublishCommand {
    /// Publish ports, all or none; other ports are not changed
    Add {
        #[arg(
            value_name = "SPEC",
            required = true,
            help = "As the option --publish: [ADDR:]HOST[-END]:GUEST[-END][/tcp|/udp]"
        )]
        specs: Vec<Publish>,
    },
    /// Stop publishing ports; established connections stay open
    Remove {
        /// As given to `add`, or as shown by `list`
        #[arg(value_name = "SPEC", required = true)]
        specs: Vec<Publish>,
    },
    /// List published ports
    List,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GuestForwardCommand {
    /// Forward ports, all or none
    Add {
        /// As the option --guest-forward
        #[arg(value_name = "SPEC", required = true)]
        specs: Vec<Forward>,
    },
    /// Stop forwarding ports, and reset the guest's connections to them
    Remove {
        /// As shown by `list`
        #[arg(value_name = "SPEC", required = true)]
        specs: Vec<Forward>,
    },
    /// List forwarded ports
    List,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RelayCommand {
    /// Add rules, all or none; existing rules are not changed
    Add {
        /// In the syntax of the option --rule
        #[arg(value_name = "RULE", required = true)]
        rules: Vec<Rule>,
    },
    /// Remove rules, all or none
    Remove {
        /// The whole rule, or the part before the arrow
        #[arg(value_name = "RULE", required = true)]
        rules: Vec<String>,
    },
    /// List the rules, and the interfaces that each waits for
    List,
    /// Show counters and rates
    Stats,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CaptureCommand {
    /// Start writing frames to a pcapng file, for Wireshark and tcpdump
    Start {
        /// FILE[,snap=N][,size=N[k|M|G]][,time=N[ms|s|m]]: bytes kept of a frame; limits on file size and duration
        #[arg(value_name = "FILE")]
        capture: Capture,
    },
    /// Stop the capture, and show its result
    Stop,
}

/// Examples first, then the options, one line each.
pub(crate) const RELAY_HELP: &str = "\
{about}

  pontoon relay --rule 'eth0 239.1.1.1:5001 -> eth1 239.2.2.2:5002, eth2 239.1.1.1:5001'
  pontoon relay --rule 'eth0 239.1.0.0/16:* -> eth1 *:* ttl 8'      a range, group and port kept, TTL 8
  pontoon relay --rule 'eth0 [ff3e::1]:5001 from 2001:db8::1 -> eth1 [2001:db8:2::9]:5001'
  pontoon relay --config relay.toml                                rules = [ \"eth0 ... -> eth1 ...\", ... ]

{usage-heading} {usage}

{options}

Of the rules that match a datagram, the longest group prefix wins, then a port over any, then a sender over any.
The TTL is decremented unless a rule sets it. A rule with an interface that does not exist waits for it.
Relayed datagrams have the source address of the interface that sends them, so source-specific (SSM) receivers do
not get them.
With --control, `pontoon ctl relay` adds, removes and lists rules, and shows their counters.
SIGHUP reads the file again: its rules and those of the command line replace all others. SIGUSR1 prints the
counters as JSON.
";

#[derive(Args, Debug)]
#[command(
    help_template = RELAY_HELP,
    override_usage = "pontoon relay (--rule RULE | --config FILE | --proxy PROXY | --follow-kernel-routes | --control PATH) [OPTIONS]",
    group = ArgGroup::new("what")
        .args(["rules", "config", "proxies", "follow_kernel_routes", "control"])
        .required(true)
        .multiple(true)
)]
pub(crate) struct RelayArgs {
    /// A rule: INTERFACE GROUP:PORT [from SENDER] -> INTERFACE ADDRESS:PORT [ttl N | above N], ...
    #[arg(long = "rule", value_name = "RULE")]
    pub(crate) rules: Vec<Rule>,
    /// A file with more rules
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Relay groups joined by hosts (IGMP, MLD): UPSTREAM -> INTERFACE, ...
    #[arg(long = "proxy", value_name = "PROXY")]
    pub(crate) proxies: Vec<Proxy>,
    /// Relay along the kernel's multicast routes (of a routing daemon) in place of the kernel
    #[arg(long)]
    pub(crate) follow_kernel_routes: bool,
    /// Processes that move packets, each with its share of the flows: 1 to 16
    #[arg(long, value_name = "N", default_value = "1", value_parser = value_parser!(u8).range(1..=16))]
    pub(crate) workers: u8,
    /// Delay a datagram at most T to send it in one batch with others (0, 100us, 1ms)
    #[arg(long, value_name = "T", default_value = "100us", value_parser = values::delay)]
    pub(crate) max_delay: Duration,
    /// Listen for `pontoon ctl relay` on a Unix socket
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Serve metrics for Prometheus to any client: ADDR:PORT
    #[arg(long, value_name = "AT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Another host name that --metrics accepts in requests
    #[arg(long, value_name = "NAME", requires = "metrics")]
    pub(crate) metrics_host: Vec<String>,
    /// Fail if the host refuses a layer of the sandbox
    #[arg(long)]
    pub(crate) require_sandbox: bool,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

#[derive(Args, Debug)]
#[command(
    override_usage = "pontoon compat [NAME [ARGS...] | install DIR | remove DIR]    (nothing: list the names)"
)]
pub(crate) struct CompatArgs {
    #[command(subcommand)]
    pub(crate) command: Option<CompatCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CompatCommand {
    /// Link the names of all programs to pontoon, so that other programs execute it in their place
    Install {
        /// Directory of the links; one that precedes /usr/bin in PATH
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Remove the links
    Remove {
        /// Directory of the links
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    #[command(external_subcommand)]
    Tool(Vec<OsString>),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

mod ctl;
mod network;
#[cfg(test)]
mod tests;
