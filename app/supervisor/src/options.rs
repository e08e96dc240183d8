//! Parsed options of `pontoon run` and `pontoon vm`.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pontoon_control::Metrics;
use pontoon_engine::address_plan::PlannedRoute;
use pontoon_engine::config::{ServiceSet, UdpFilter};
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
    /// Addresses that lead to the address from which the host sends to other hosts.
    pub map_host: Vec<IpAddr>,
    /// Addresses, gateways and routes of the guest's interface.
    pub addressing: Addressing,
    /// MTU of the guest's interface; `None`: the host interface's in a plan of the host's network, otherwise 1,500 for a
    /// virtual machine and 65,520 for a namespace.
    pub mtu: Option<u16>,
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
    /// Ethernet address of the gateway.
    pub gateway_mac: Mac,
    /// Fully qualified domain name that DHCP and DHCPv6 hand to the guest.
    pub fqdn: Option<String>,
    /// Protocols and services that the guest does not have.
    pub disabled: ServiceSet,
    /// Source address or interface of host sockets.
    pub outbound: Outbound,
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
        /// Name of the guest's interface; `None`: the host interface's in a plan of the host's network, otherwise `tap0`.
        ifname: Option<String>,
        /// Root's command keeps the capabilities of the host's user namespace.
        keep_capabilities: bool,
    },
    /// An existing network namespace.
    Attach {
        /// The namespace.
        target: Target,
        /// Name of the guest's interface; `None`: the host interface's in a plan of the host's network, otherwise `tap0`.
        ifname: Option<String>,
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
    /// Host name that DHCP hands to the guest.
    pub hostname: Option<String>,
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

/// Addresses, gateways and routes of the guest's interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addressing {
    /// The origin of everything that the other fields do not contain.
    pub source: AddressSource,
    /// The guest's IPv4 side.
    pub ipv4: Ipv4,
    /// The guest's IPv6 side.
    pub ipv6: Ipv6,
    /// The guest's addresses with the prefix lengths of their subnets, in place of the source's of the same family. The
    /// first of a family is the one that DHCP or DHCPv6 leases.
    pub addresses: Vec<IpNet>,
    /// Gateways, at most one for each family.
    pub gateways: Vec<IpAddr>,
    /// Routes in addition to those of the source.
    pub routes: Vec<PlannedRoute>,
    /// Addresses of the DNS forwarder, at most one for each family.
    pub dns: Vec<IpAddr>,
}

/// The origin of the guest's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressSource {
    /// Subnets that exist only on the guest's link.
    #[default]
    Private,
    /// The addresses and routes of an interface of the host: of this one, or `None`: of that with the default route.
    Host(Option<String>),
}

/// The guest's IPv4 side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ipv4 {
    /// In a private plan, the first subnet that the host does not use.
    #[default]
    Auto,
    /// This private subnet.
    Subnet(Ipv4Net),
    /// No IPv4.
    Off,
}

/// The guest's IPv6 side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ipv6 {
    /// In a private plan, the first subnet that the host does not use.
    #[default]
    Auto,
    /// This private subnet, a /64.
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
