//! Definitions of the command line's verbs, arguments and options.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::Styles;
use clap::{ArgAction, ArgGroup, Args, Parser, Subcommand, ValueEnum, value_parser};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pontoon_control::reply::Level;
use pontoon_engine::address_plan::PlannedRoute;
use pontoon_engine::config::{LinkService, UdpFilter};
use pontoon_engine::egress::Match;
use pontoon_relay::Rule;
use pontoon_relay::proxy::Proxy;
use pontoon_supervisor::audit::Audit;
use pontoon_supervisor::capture::Capture;
use pontoon_supervisor::forward::Forward;
use pontoon_supervisor::options::{AddressSource, Loopback, Target, VhostNet};
use pontoon_supervisor::publish::Publish;
use pontoon_wire::Mac;
use pontoon_worker::{MachineProtocol, Pacing};

use crate::values;
pub(crate) use ctl::{FlowsCommand, PolicyCommand};

/// User-mode networking for namespaces, microVMs and unikernels.
#[derive(Debug, Parser)]
#[command(version, styles = Styles::plain(), disable_help_subcommand = true)]
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
    /// Run with the command line of another program, such as slirp4netns
    Compat(CompatArgs),
    /// Compare network stacks on this machine (runs pontoon-bench)
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// Examples first, then the options, one line each.
const RUN_HELP: &str = "\
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
    /// Name of the guest's interface [default: tap0, or the host interface's with --addressing host]
    #[arg(long, value_name = "NAME", value_parser = values::ifname)]
    pub(crate) ifname: Option<String>,
    /// Attach to the tap as it is, or create it without addresses: another program configures it
    #[arg(long, hide_short_help = true, requires = "attach")]
    pub(crate) no_configure: bool,
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
const VM_HELP: &str = "\
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
    /// Listen on a Unix socket here
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Use this socket, connected or listening
    #[arg(long, value_name = "N", value_parser = value_parser!(i32).range(3..))]
    pub(crate) fd: Option<i32>,
    /// Protocol of the socket
    #[arg(long, value_name = "PROTOCOL", value_parser = values::machine_protocol())]
    pub(crate) protocol: MachineProtocol,
    /// Exit after the first guest
    #[arg(long)]
    pub(crate) one_off: bool,
    /// Host name that the guest gets by DHCP
    #[arg(long, value_name = "NAME", value_parser = values::hostname)]
    pub(crate) hostname: Option<String>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
}

// Options that the guests of all verbs have in common. (A doc comment would become the first line of the help text.)
#[derive(Args, Debug)]
pub(crate) struct NetworkArgs {
    #[arg(
        short,
        long,
        value_name = "SPEC",
        help = "Publish guest ports: [ADDR:]HOST[-END]:GUEST[-END][/tcp|/udp]; auto, all and others: docs/ports.md"
    )]
    pub(crate) publish: Vec<Publish>,
    #[arg(
        long,
        hide_short_help = true,
        value_name = "SPEC",
        help = "The guest reaches the host's loopback port: [ADDR:]PORT[-END][:[TARGET:]PORT[-END]][/tcp|/udp], or auto"
    )]
    pub(crate) guest_forward: Vec<Forward>,
    /// Packets to ADDR (the gateway) reach the host's loopback
    #[arg(long, value_name = "ADDR", num_args = 0..=1, require_equals = true, default_missing_value = "gateway",
          value_parser = values::loopback)]
    pub(crate) host_loopback: Vec<Loopback>,
    /// Packets to ADDR reach the host at the address from which it sends to other hosts
    #[arg(long, hide_short_help = true, value_name = "ADDR", value_parser = values::mapped_address)]
    pub(crate) map_host: Vec<IpAddr>,
    /// Allow the host's own addresses
    #[arg(long)]
    pub(crate) host_addresses: bool,
    /// Allow cloud metadata services (169.254.169.254, ...)
    #[arg(long)]
    pub(crate) metadata: bool,
    #[arg(
        long,
        value_name = "TO",
        help = "Allow only this destination: CIDR|DOMAIN[:PORTS][/tcp|/udp|/icmp]"
    )]
    pub(crate) allow: Vec<Match>,
    /// Deny this destination
    #[arg(long, value_name = "TO")]
    pub(crate) deny: Vec<Match>,
    /// Rules from a TOML file: allow = ["TO", ...], deny = ["TO", ...]
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// Addresses of the guest: private, host (of the interface with the default route) or host:IFACE
    #[arg(long, value_name = "SOURCE", default_value = "private", value_parser = values::address_source)]
    pub(crate) addressing: AddressSource,
    /// An address of the guest with its subnet's prefix length, in place of the default one of its family
    #[arg(long, value_name = "ADDR/LEN", value_parser = values::guest_address)]
    pub(crate) address: Vec<IpNet>,
    /// The guest's gateway [default: the second address of its subnet, or the host's gateway]
    #[arg(long, hide_short_help = true, value_name = "ADDR", value_parser = values::unicast)]
    pub(crate) gateway: Vec<IpAddr>,
    /// Another route of the guest: CIDR or CIDR,GATEWAY
    #[arg(long, hide_short_help = true, value_name = "ROUTE", value_parser = values::route)]
    pub(crate) route: Vec<PlannedRoute>,
    /// The DNS forwarder's address in the guest [default: the third of its subnet, or the gateway]
    #[arg(long, hide_short_help = true, value_name = "ADDR", value_parser = values::unicast)]
    pub(crate) dns_address: Vec<IpAddr>,
    /// The guest's private IPv4 subnet [default: 10.0.2.0/24]
    #[arg(long, value_name = "CIDR", conflicts_with = "no_ipv4")]
    pub(crate) ipv4: Option<Ipv4Net>,
    /// The guest's private IPv6 subnet [default: fd70:6f6e:746f::/64]
    #[arg(long, value_name = "CIDR", conflicts_with = "no_ipv6")]
    pub(crate) ipv6: Option<Ipv6Net>,
    /// No IPv4 in the guest
    #[arg(long, hide_short_help = true)]
    pub(crate) no_ipv4: bool,
    /// No IPv6 in the guest
    #[arg(long)]
    pub(crate) no_ipv6: bool,
    /// MTU of the guest's interface [default: 65520, 1500 for a virtual machine, or the host's with --addressing host]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(576..=65520))]
    pub(crate) mtu: Option<u16>,
    /// Use this resolver, or none [default: the host's]
    #[arg(long, value_name = "ADDR|none", value_parser = values::resolver)]
    pub(crate) dns: Vec<Resolver>,
    /// Fully qualified domain name that the guest gets by DHCP and DHCPv6
    #[arg(long, hide_short_help = true, value_name = "NAME", value_parser = values::domain)]
    pub(crate) fqdn: Option<String>,
    /// Services that the guest does not have: dhcp, dhcpv6, ndp, ra, tcp, udp, icmp
    #[arg(
        long,
        hide_short_help = true,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = values::one_of(values::LINK_SERVICES),
        hide_possible_values = true
    )]
    pub(crate) disable: Vec<LinkService>,
    /// Ethernet address of the gateway
    #[arg(long, hide_short_help = true, value_name = "ADDR", value_parser = values::mac)]
    pub(crate) gateway_mac: Option<Mac>,
    /// Search domain [default: the host's]
    #[arg(long, hide_short_help = true, value_name = "DOMAIN", value_parser = values::search_domain)]
    pub(crate) search: Vec<String>,
    /// Wait by event, poll, or hybrid (both)
    #[arg(
        long,
        value_name = "MODE",
        default_value = "hybrid",
        value_parser = values::one_of(values::PACINGS),
        hide_possible_values = true
    )]
    pub(crate) io: Pacing,
    /// Threads that move packets, each with a queue: 1 to 16
    #[arg(long, value_name = "N", default_value = "1", value_parser = value_parser!(u8).range(1..=16))]
    pub(crate) workers: u8,
    /// Disable checksum and segmentation offloads
    #[arg(long, hide_short_help = true)]
    pub(crate) no_offload: bool,
    /// Fail if the host refuses a layer of the sandbox
    #[arg(long, hide_short_help = true)]
    pub(crate) require_sandbox: bool,
    /// Ethernet address of the guest's interface
    #[arg(long, value_name = "ADDR", value_parser = values::mac)]
    pub(crate) mac: Option<Mac>,
    /// Send from this address (one of each family) or interface of the host
    #[arg(long, value_name = "ADDR|IFACE", value_parser = values::outbound)]
    pub(crate) outbound: Vec<OutboundSource>,
    /// Timeout of outbound connects (10s, 500ms) [default: the host's]
    #[arg(long, hide_short_help = true, value_name = "T", value_parser = values::duration)]
    pub(crate) connect_timeout: Option<Duration>,
    /// UDP filter: endpoint, address or address-port
    #[arg(
        long, hide_short_help = true,
        value_name = "WHO",
        default_value = "address",
        value_parser = values::one_of(values::UDP_FILTERS),
        hide_possible_values = true
    )]
    pub(crate) udp_filter: UdpFilter,
    /// Concurrent flows [default: 131072, or as 'ulimit -Hn' allows]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_flows: Option<u32>,
    /// Limit on host UDP ports per address family [default: a fourth]
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_udp_ports: Option<u32>,
    /// Limit on new flows per second [default: 20000 per worker]
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_flow_rate: Option<u32>,
    /// Limit on bits per second in each direction: N[k|M|G] [default: none]
    #[arg(long, value_name = "RATE", value_parser = values::bandwidth)]
    pub(crate) max_bandwidth: Option<NonZeroU64>,
    /// Listen for `pontoon ctl` on a Unix socket
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Listen for `pontoon ctl` on a Unix socket whose clients may inspect and change nothing
    #[arg(long, hide_short_help = true, value_name = "PATH")]
    pub(crate) control_read: Option<PathBuf>,
    #[arg(
        long,
        value_name = "FILE",
        help = "Capture frames in pcapng: FILE[,snap=N][,size=N][,time=T]"
    )]
    pub(crate) pcap: Option<Capture>,
    #[arg(
        long,
        hide_short_help = true,
        value_name = "FILE",
        help = "Append a record for each event of a flow to a file: FILE[,size=N][,keep=N]"
    )]
    pub(crate) audit: Option<Audit>,
    /// Serve metrics for Prometheus to any client: ADDR:PORT
    #[arg(long, value_name = "AT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Another host name that --metrics accepts in requests
    #[arg(long, hide_short_help = true, value_name = "NAME", requires = "metrics")]
    pub(crate) metrics_host: Vec<String>,
    /// Exit when the other end of descriptor N, a pipe or socket, is closed
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = value_parser!(i32).range(3..))]
    pub(crate) exit_fd: Option<i32>,
    /// Listen on a Unix socket for a program that decides about each new flow; without one, flows are denied
    #[arg(long, hide_short_help = true, value_name = "PATH")]
    pub(crate) control_decide: Option<PathBuf>,
    /// The same over descriptor N, a connected stream socket, with lines of JSON
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = value_parser!(i32).range(3..))]
    pub(crate) decider_fd: Option<i32>,
    /// Time after which a flow without a decision is denied (2s, 500ms) [default: 2s]
    #[arg(long, hide_short_help = true, value_name = "T", value_parser = values::decision_deadline)]
    pub(crate) decision_deadline: Option<Duration>,
    /// Listen on a Unix socket for requests to publish ports, in the protocol of slirp4netns
    #[arg(long, hide_short_help = true, value_name = "PATH")]
    pub(crate) slirp_api: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// One value of `--outbound`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutboundSource {
    /// Source address of packets to destinations of its family.
    Address(IpAddr),
    /// Name of the interface to which sockets are bound.
    Interface(String),
}

/// Readiness notification and logging, for all verbs that keep running.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// Write a line to descriptor N when the network is ready
    #[arg(long, value_name = "N", value_parser = value_parser!(i32).range(3..))]
    pub(crate) ready_fd: Option<i32>,
    /// Write the process id when the network is ready
    #[arg(long, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,
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
const RELAY_HELP: &str = "\
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

/// A value of `--dns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolver {
    None,
    At(SocketAddr),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

mod ctl;
#[cfg(test)]
mod tests;
