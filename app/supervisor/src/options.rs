//! Parsed options of `pontoon run` and `pontoon vm`.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};
use pontoon_control::Metrics;
use pontoon_engine::config::UdpFilter;
use pontoon_engine::egress::EgressRule;
use pontoon_wire::Mac;
use pontoon_worker::{MachineProtocol, Outbound, Pacing};

use crate::capture::Capture;
use crate::publish::Publish;

/// All options of `pontoon run` and `pontoon vm`.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// The guest.
    pub guest: Guest,
    /// Published ports.
    pub publish: Vec<Publish>,
    /// Addresses that lead to the host's loopback.
    pub host_loopback: Vec<Loopback>,
    /// Allow the host's own addresses as destinations.
    pub host_addresses: bool,
    /// Allow cloud metadata services as destinations.
    pub metadata: bool,
    /// Egress rules, in order.
    pub rules: Vec<EgressRule>,
    /// The guest's IPv4 subnet; `None`: the first that the host does not use.
    pub ipv4: Option<Ipv4Net>,
    /// The guest's IPv6 subnet.
    pub ipv6: Ipv6,
    /// MTU of the guest's interface.
    pub mtu: u16,
    /// Destination of DNS queries.
    pub resolvers: Resolvers,
    /// DNS search domains; if empty, the host's.
    pub search: Vec<String>,
    /// Wait strategy of the workers.
    pub pacing: Pacing,
    /// Number of workers: threads, each with one queue of the guest's interface; a socket has one queue.
    pub workers: u8,
    /// Disable checksum and segmentation offloads.
    pub no_offload: bool,
    /// Fail if the host refuses a layer of the sandbox.
    pub require_sandbox: bool,
    /// Use of the kernel's vhost-net for a namespace's interface.
    pub vhost_net: VhostNet,
    /// Ethernet address of the guest's interface.
    pub mac: Mac,
    /// Source address or interface of host sockets.
    pub outbound: Option<Outbound>,
    /// Timeout of outbound TCP connects; `None`: the host's.
    pub connect_timeout: Option<Duration>,
    /// Filter for replies to the guest's UDP endpoints (RFC 4787 section 5).
    pub udp_filter: UdpFilter,
    /// Limit on concurrent flows; `None`: derived from the descriptor limit.
    pub max_flows: Option<u32>,
    /// Limit on host UDP ports per address family; `None`: a share of the host's ephemeral ports.
    pub max_udp_ports: Option<u32>,
    /// Limit on new flows per second; `None`: [`config::FLOW_RATE`](crate::config::FLOW_RATE) for each worker.
    pub max_flow_rate: Option<u32>,
    /// Limit on bits per second in each direction.
    pub max_bandwidth: Option<NonZeroU64>,
    /// Descriptor to write to when the network is ready.
    pub ready_fd: Option<RawFd>,
    /// Path of the control socket.
    pub control: Option<PathBuf>,
    /// Capture that begins before the guest starts.
    pub pcap: Option<Capture>,
    /// Metrics for Prometheus.
    pub metrics: Option<Metrics>,
    /// File for the process id, written when the network is ready.
    pub pid_file: Option<PathBuf>,
}

/// Use of vhost-net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VhostNet {
    /// Use it if it is available and works.
    Auto,
    /// Fail if it is not available or does not work.
    On,
    /// Do not use it.
    Off,
}

/// The guest.
#[derive(Clone, Debug)]
pub enum Guest {
    /// A command in namespaces of its own.
    Command {
        /// Program and arguments; at least the program.
        argv: Vec<OsString>,
        /// The guest's host name; `None`: the host's.
        hostname: Option<String>,
        /// Name of the guest's interface.
        ifname: String,
        /// Root's command keeps the capabilities of the host's user namespace.
        keep_capabilities: bool,
    },
    /// An existing network namespace.
    Attach {
        /// The namespace.
        target: Target,
        /// Name of the guest's interface.
        ifname: String,
    },
    /// A virtual machine or unikernel that is started by another program.
    Machine(Machine),
}

/// The connection to a virtual machine or unikernel.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The socket.
    pub socket: MachineSocket,
    /// The protocol on the socket.
    pub protocol: MachineProtocol,
    /// Serve only one guest, instead of one after another.
    pub one_off: bool,
}

/// A socket to which a guest is or will be connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineSocket {
    /// Path of a Unix socket to listen on.
    Path(PathBuf),
    /// A descriptor inherited from the parent process: connected or listening.
    Descriptor(RawFd),
}

/// A network namespace, by process or by file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The namespace of a process.
    Pid(u32),
    /// A namespace file (`/run/netns/NAME`, `/proc/PID/ns/net`).
    Path(PathBuf),
}

/// An address that leads to the host's loopback.
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
    /// The first subnet that the host does not use.
    Auto,
    /// This subnet, a /64.
    Subnet(Ipv6Net),
    /// No IPv6.
    Off,
}

/// Destination of DNS queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolvers {
    /// The host's resolvers; changes are followed while running.
    Host,
    /// These resolvers.
    Given(Vec<SocketAddr>),
    /// No DNS forwarder; the guest's resolv.conf is not changed.
    None,
}
