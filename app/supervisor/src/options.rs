//! Parsed options of `pontoon run` and `pontoon vm`.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use pontoon_control::Metrics;
use pontoon_engine::config::{PublishedPath, ServiceSet, UdpFilter};
use pontoon_engine::decider;
use pontoon_engine::egress::EgressRule;
pub use pontoon_host_network::addressing::{AddressSource, Addressing, Ipv4, Ipv6};
use pontoon_process::ready_notify::PidFile;
use pontoon_wire::Mac;
use pontoon_worker::{MachineProtocol, Outbound, Pacing};

use crate::audit::Audit;
use crate::capture::Capture;
use crate::forward::Forward;
use crate::log_file::LogTo;
use crate::proxy::ProxyOptions;
use crate::publish::{self, Publish};

/// Parsed options of `pontoon run` and `pontoon vm`.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// Guest whose network this is.
    pub guest: Guest,
    /// Ports of the host that are published to the guest.
    pub publish: Vec<Publish>,
    /// True if connections of clients on this host to published ports need not use the guest's link.
    pub splice: bool,
    /// Ports at which the guest reaches ports of the host.
    pub forwards: Vec<Forward>,
    /// Guest-side addresses that are translated to the host's loopback address.
    pub host_loopback: Vec<Loopback>,
    /// True if the guest may reach the host's own addresses.
    pub host_addresses: bool,
    /// True if the guest may reach cloud metadata services.
    pub metadata: bool,
    /// Egress rules, in the order of the options.
    pub rules: Vec<EgressRule>,
    /// Upstream proxy of the guest's TCP connections.
    pub proxy: Option<ProxyOptions>,
    /// Addresses that lead to the address from which the host sends to other hosts.
    pub map_host: Vec<IpAddr>,
    /// Addresses, gateways and routes of the guest's interface.
    pub addressing: Addressing,
    /// MTU of the guest's interface; `None`: the host interface's in a plan of the host's network, otherwise 1,500 for a
    /// virtual machine and 65,520 for a namespace.
    pub mtu: Option<u16>,
    /// Servers to which the DNS forwarder sends queries.
    pub resolvers: Resolvers,
    /// DNS search domains of the guest; if empty, the host's are used.
    pub search: Vec<String>,
    /// Strategy by which workers wait for input: spinning or sleeping.
    pub pacing: Pacing,
    /// Number of workers: threads, each with one queue of the guest's interface. A link over a socket has one queue.
    pub workers: u8,
    /// True if checksum and segmentation offloads are disabled.
    pub no_offload: bool,
    /// True if it is an error that the host refuses a layer of the sandbox.
    pub require_sandbox: bool,
    /// Use of the kernel's vhost-net for the tap of a namespace.
    pub vhost_net: VhostNet,
    /// Ethernet address of the guest's interface.
    pub mac: Mac,
    /// Ethernet address of the gateway.
    pub gateway_mac: Mac,
    /// Fully qualified domain name that DHCP and DHCPv6 hand to the guest.
    pub fqdn: Option<String>,
    /// Protocols and services that the guest does not have.
    pub disabled: ServiceSet,
    /// Source address or interface to which host sockets are bound.
    pub outbound: Outbound,
    /// Timeout of TCP connects to the network; `None` uses that of the host's kernel.
    pub connect_timeout: Option<Duration>,
    /// Filter for datagrams to the guest's UDP endpoints (RFC 4787 section 5).
    pub udp_filter: UdpFilter,
    /// Limit on concurrent flows; `None` derives it from the descriptor limit.
    pub max_flows: Option<u32>,
    /// Limit on UDP ports of the host per address family; `None` means a quarter of the host's ephemeral ports.
    pub max_udp_ports: Option<u32>,
    /// Limit on new flows per second; `None` means [`config::FLOW_RATE`](crate::config::FLOW_RATE) for each worker.
    pub max_flow_rate: Option<u32>,
    /// Limit on the bits per second in each direction; `None` means no limit.
    pub max_bandwidth: Option<NonZeroU64>,
    /// Descriptor that is written when the network is ready.
    pub ready_fd: Option<RawFd>,
    /// Descriptor of a pipe or socket; the program exits when its other end is closed.
    pub exit_fd: Option<RawFd>,
    /// Path of the control socket.
    pub control: Option<PathBuf>,
    /// Path of a control socket that permits no changes.
    pub control_read: Option<PathBuf>,
    /// Path of the socket to which the decider about new flows connects.
    pub control_decide: Option<PathBuf>,
    /// Descriptor of a stream socket that is connected to the decider.
    pub decider_fd: Option<RawFd>,
    /// Time after which a flow without a verdict is denied; `None` uses [`DEADLINE`](pontoon_engine::decider::DEADLINE).
    pub decision_deadline: Option<Duration>,
    /// Path of a socket for requests in the protocol of slirp4netns.
    pub slirp_api: Option<PathBuf>,
    /// Socket for requests in the protocol of pesto.
    pub pesto: Option<PestoSocket>,
    /// Capture that begins before the guest sends a frame.
    pub pcap: Option<Capture>,
    /// File to which the events of all flows are written.
    pub audit: Option<Audit>,
    /// Address of the metrics for Prometheus.
    pub metrics: Option<Metrics>,
    /// File to which the process id is written when the network is ready.
    pub pid_file: Option<PidFile>,
    /// File to which the log is written, beside standard error.
    pub log_file: Option<LogTo>,
    /// True if the lines of the log file begin with the time.
    pub timed_log: bool,
    /// True if the process continues in the background when the network is ready.
    pub daemon: bool,
}

/// Socket for requests in the protocol of pesto: `PATH[,via=PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PestoSocket {
    /// Path of the socket.
    pub path: PathBuf,
    /// Path of the data of clients on this host to ports that a request adds.
    pub via: PublishedPath,
}

impl FromStr for PestoSocket {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, via) = publish::spec::split_off_path(text)?;
        match path {
            "" => Err("missing path".to_owned()),
            path => Ok(Self {
                path: path.into(),
                via,
            }),
        }
    }
}

impl GuestOptions {
    /// Returns true if a program has to decide about new flows.
    #[must_use]
    pub const fn requires_decider(&self) -> bool {
        self.control_decide.is_some() || self.decider_fd.is_some()
    }

    /// Returns the time after which a flow without a verdict is denied.
    #[must_use]
    pub fn decision_deadline(&self) -> Duration {
        self.decision_deadline.unwrap_or(decider::DEADLINE)
    }
}

/// Value of `--vhost-net`: use of the kernel's vhost-net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VhostNet {
    /// Use vhost-net if it is available and works, and the tap otherwise.
    Auto,
    /// Fail if vhost-net is not available or does not work.
    On,
    /// Do not use vhost-net.
    Off,
}

/// Guest that gets the network, and how it is started or found.
#[derive(Clone, Debug)]
pub enum Guest {
    /// Command that the supervisor starts in new namespaces.
    Command {
        /// Program and its arguments; the program is always present.
        argv: Vec<OsString>,
        /// Host name of the guest; `None` keeps the host's.
        hostname: Option<String>,
        /// Name of the guest's interface; `None`: the host interface's in a plan of the host's network, otherwise `tap0`.
        ifname: Option<String>,
        /// True if a command that root starts keeps the capabilities of the host's user namespace.
        keep_capabilities: bool,
    },
    /// Network namespace that exists already.
    Attach {
        /// Network namespace to which the tap is added.
        target: Target,
        /// Name of the guest's interface; `None`: the host interface's in a plan of the host's network, otherwise `tap0`.
        ifname: Option<String>,
        /// False if another program configures the guest's interface.
        configure: bool,
        /// True if the loopback interface is brought up.
        loopback: bool,
        /// True if the end of the namespace does not end the program.
        stay: bool,
    },
    /// A virtual machine or unikernel that is started by another program.
    Machine(Machine),
}

/// Connection to a virtual machine or unikernel.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Socket over which the guest's frames or vhost-user messages are carried.
    pub socket: MachineSocket,
    /// Protocol on the socket.
    pub protocol: MachineProtocol,
    /// True if one guest only is served, instead of one after another.
    pub one_off: bool,
    /// Host name that DHCP hands to the guest.
    pub hostname: Option<String>,
}

/// Socket to which a virtual machine's hypervisor is or will be connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineSocket {
    /// Paths of a Unix socket to create and listen on: the first one at which that is possible is used.
    Paths(Vec<PathBuf>),
    /// Descriptor of a connected or listening socket that is inherited from the parent process.
    Descriptor(RawFd),
}

/// Network namespace that is named by a process or by a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Network namespace of the process with this id.
    Pid(u32),
    /// Path of a namespace file (`/run/netns/NAME`, `/proc/PID/ns/net`).
    Path(PathBuf),
}

/// Guest-side address that is translated to the host's loopback address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loopback {
    /// Addresses of the guest's gateway, in both families.
    Gateway,
    /// Any other address.
    Address(IpAddr),
}

/// Servers to which the DNS forwarder sends queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolvers {
    /// Resolvers of the host; their changes are applied while the guest runs.
    Host,
    /// The given resolvers.
    Given(Vec<SocketAddr>),
    /// No DNS forwarder; the guest's resolv.conf is not changed.
    None,
}
