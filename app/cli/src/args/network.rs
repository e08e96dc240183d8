//! Options of the guest's network, which `run` and `vm` have.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pontoon_engine::address_plan::PlannedRoute;
use pontoon_engine::config::{LinkService, UdpFilter};
use pontoon_engine::egress::Match;
use pontoon_supervisor::audit::Audit;
use pontoon_supervisor::capture::Capture;
use pontoon_supervisor::forward::Forward;
use pontoon_supervisor::log_file::LogTo;
use pontoon_supervisor::options::{AddressSource, Loopback, PestoSocket};
use pontoon_supervisor::publish::Publish;
use pontoon_wire::Mac;
use pontoon_worker::Pacing;

use super::ReportArgs;
use crate::values;

#[derive(Args, Debug)]
pub(crate) struct NetworkArgs {
    #[arg(
        short,
        long,
        value_name = "SPEC",
        help = "Publish guest ports: [ADDR:]HOST[-END]:GUEST[-END][/tcp|/udp]; auto, all and others: docs/ports.md"
    )]
    pub(crate) publish: Vec<Publish>,
    /// Send the data of clients on this host over the guest's interface, too
    #[arg(long, hide_short_help = true)]
    pub(crate) no_splice: bool,
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
        help = "Allow only CIDR|DOMAIN[:PORTS][/tcp|/udp|/icmp|/tls|/tls-strict]"
    )]
    pub(crate) allow: Vec<Match>,
    /// Deny this destination
    #[arg(long, value_name = "TO")]
    pub(crate) deny: Vec<Match>,
    /// Rules from a TOML file: allow = ["TO", ...], deny = ["TO", ...]
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// TCP through a proxy: http://HOST:PORT or socks5://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub(crate) proxy: Option<String>,
    /// The user name and password at the proxy: a file with USER:PASSWORD
    #[arg(long, hide_short_help = true, value_name = "FILE", requires = "proxy")]
    pub(crate) proxy_credentials: Option<PathBuf>,
    #[arg(
        long,
        hide_short_help = true,
        value_name = "TO",
        requires = "proxy",
        help = "Only these destinations through the proxy: CIDR|DOMAIN[:PORTS]"
    )]
    pub(crate) proxy_for: Vec<Match>,
    /// Not these destinations through the proxy
    #[arg(long, hide_short_help = true, value_name = "TO", requires = "proxy")]
    pub(crate) no_proxy: Vec<Match>,
    /// The proxy resolves the names of its destinations
    #[arg(long, hide_short_help = true, requires = "proxy")]
    pub(crate) proxy_dns: bool,
    /// Addresses of the guest: private, host or host:IFACE (of a host interface), auto or auto:IFACE
    #[arg(long, value_name = "SOURCE", default_value = "private", value_parser = values::address_source)]
    pub(crate) addressing: AddressSource,
    /// With --addressing host: only the first address of each family
    #[arg(long, hide_short_help = true)]
    pub(crate) one_host_address: bool,
    /// With --addressing host: no routes but the default ones
    #[arg(long, hide_short_help = true)]
    pub(crate) no_host_routes: bool,
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
    /// Services that the guest does not have: dhcp, dhcpv6, ndp, ra, tcp, udp, icmp, dns-option
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
    #[arg(
        long,
        hide_short_help = true,
        value_name = "PATH",
        help = "Listen on a Unix socket for requests to publish ports, in the protocol of pesto: PATH[,via=guest-loopback]"
    )]
    pub(crate) pesto: Option<PestoSocket>,
    #[arg(
        long,
        hide_short_help = true,
        value_name = "FILE",
        help = "Write the log to a file, too; of a command, to the file only: FILE[,size=N][,title=TEXT] [default: 1 MiB]"
    )]
    pub(crate) log_file: Option<LogTo>,
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

/// A value of `--dns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolver {
    None,
    At(SocketAddr),
}
