//! What the user asked for: parsed, not yet acted on.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};
use pontoon_engine::config::UdpFilter;
use pontoon_engine::egress::Rule;
use pontoon_runtime::{Outbound, Pacing};
use pontoon_wire::Mac;

use crate::capture::Capture;
use crate::publish::Publish;

/// Everything that `pontoon run` and `pontoon vm` can be told.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is behind the link.
    pub guest: Guest,
    /// Ports of the guest on the host.
    pub publish: Vec<Publish>,
    /// Addresses that reach the host's loopback.
    pub host_loopback: Vec<Loopback>,
    /// The host's own addresses may be reached.
    pub host_addresses: bool,
    /// Metadata services of clouds may be reached.
    pub metadata: bool,
    /// Where else the guest may go, and where not.
    pub rules: Vec<Rule>,
    /// The guest's IPv4 subnet; otherwise the first free one.
    pub ipv4: Option<Ipv4Net>,
    /// The guest's IPv6 subnet.
    pub ipv6: Ipv6,
    /// MTU of the guest's interface.
    pub mtu: u16,
    /// Where DNS queries go.
    pub resolvers: Resolvers,
    /// Search domains; none given: the host's.
    pub search: Vec<String>,
    /// How a worker waits.
    pub pacing: Pacing,
    /// Workers: threads, and queues of the guest's interface; a socket is one queue.
    pub workers: u8,
    /// Plain frames, without offloads.
    pub no_offload: bool,
    /// A layer of the sandbox that the host refuses is an error.
    pub require_sandbox: bool,
    /// Whether the kernel's vhost-net carries frames to and from a namespace's interface.
    pub vhost_net: VhostNet,
    /// Ethernet address of the guest's interface.
    pub mac: Mac,
    /// Where the host side sends from.
    pub outbound: Option<Outbound>,
    /// How long a connect may take.
    pub connect_timeout: Option<Duration>,
    /// Who may answer a guest's UDP endpoint.
    pub udp_filter: UdpFilter,
    /// Flows at one time; none given: what the descriptor limit leaves.
    pub max_flows: Option<u32>,
    /// UDP ports of the host that the guest may hold, in each family; none given: a share of the host's ephemeral ports.
    pub max_udp_ports: Option<u32>,
    /// New flows a second; none given: [`config::FLOW_RATE`](crate::config::FLOW_RATE) for each worker.
    pub max_flow_rate: Option<u32>,
    /// Bits a second each way.
    pub max_bandwidth: Option<NonZeroU64>,
    /// Descriptor that is told when the network stands.
    pub ready_fd: Option<RawFd>,
    /// Control socket.
    pub control: Option<PathBuf>,
    /// What is captured from the start on.
    pub pcap: Option<Capture>,
    /// Where Prometheus finds metrics.
    pub metrics: Option<Metrics>,
    /// File for our process id, written when the network stands.
    pub pid_file: Option<PathBuf>,
}

/// Metrics over TCP.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Where they are served.
    pub at: SocketAddr,
    /// Names of this host that requests may have, beside its addresses and `localhost`.
    pub hosts: Vec<String>,
}

/// A wish for vhost-net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VhostNet {
    /// Where it is there and works.
    Auto,
    /// It is an error when it does not.
    On,
    /// No.
    Off,
}

/// What is behind the link.
#[derive(Clone, Debug)]
pub enum Guest {
    /// A command in namespaces of its own.
    Command {
        /// Program and arguments; at least the program.
        argv: Vec<OsString>,
        /// The guest's host name; otherwise the host's.
        hostname: Option<String>,
        /// Name of the guest's interface.
        ifname: String,
        /// Root's command keeps the capabilities of the host's user namespace.
        keep_capabilities: bool,
    },
    /// A network namespace that somebody else made.
    Attach {
        /// Which one.
        target: Target,
        /// Name of the guest's interface.
        ifname: String,
    },
    /// A machine that somebody else runs.
    Machine(Machine),
}

/// How a virtual machine or a unikernel is joined to us.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Where its frames come from.
    pub seat: Seat,
    /// How they are told apart.
    pub protocol: Protocol,
    /// Only one guest, rather than one after the other.
    pub one_off: bool,
}

/// A socket that a guest is at the other end of, or will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seat {
    /// A Unix socket to listen on, by its file.
    Path(PathBuf),
    /// One that whoever started us has open: connected, or listening.
    Descriptor(RawFd),
}

/// What a machine speaks on its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Virtqueues in shared memory (QEMU, "Vhost-user Protocol").
    VhostUser,
    /// Each frame behind its length of 32 bits in big endian, on SOCK_STREAM.
    Stream,
    /// Each frame in a message of its own, on SOCK_SEQPACKET or SOCK_DGRAM.
    Packet,
}

/// A network namespace, by process or by file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// That of a process.
    Pid(u32),
    /// A file that is one (`/run/netns/NAME`, `/proc/PID/ns/net`).
    Path(PathBuf),
}

/// An address that reaches the host's loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loopback {
    /// The gateway, in both families.
    Gateway,
    /// This address.
    Address(IpAddr),
}

/// The guest's IPv6 side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipv6 {
    /// The first free subnet.
    Auto,
    /// This subnet, a /64.
    Subnet(Ipv6Net),
    /// None.
    Off,
}

/// Where DNS queries go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolvers {
    /// To the host's resolvers, followed while running.
    Host,
    /// To these.
    Given(Vec<SocketAddr>),
    /// Nowhere: there is no forwarder, and the guest's resolv.conf is left alone.
    None,
}
