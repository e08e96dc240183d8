//! Edge: the process that moves packets. It knows both halves: links and host sockets on one side, the engine on
//! the other, and the loop between them.

use std::os::fd::OwnedFd;

use pontoon_engine::Config;

/// How a worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// Sleep at once.
    Event,
    /// Spin while it pays, then sleep.
    Hybrid,
    /// Never sleep.
    Poll,
}

/// Where the host side sends from (`--outbound`).
#[derive(Clone, Debug)]
pub enum Outbound {
    /// An address, for its own family.
    Address(std::net::IpAddr),
    /// An interface (`SO_BINDTODEVICE`).
    Interface(String),
}

/// Everything that the engine process is born with. Descriptors were opened by the supervisor.
#[derive(Debug)]
pub struct Setup {
    /// What the engine is told.
    pub config: Config,
    /// Addresses that the host owns now.
    pub owned: Vec<std::net::IpAddr>,
    /// The tap: `IFF_TAP | IFF_NO_PI`, with `IFF_VNET_HDR` and TUNSETOFFLOAD where `offload` says so.
    pub tap: OwnedFd,
    /// What was negotiated on the tap.
    pub offload: TapOffload,
    /// One socket for each entry of `config.published`, in its order: listening (TCP) or bound (UDP).
    pub published: Vec<OwnedFd>,
    /// Raw ICMP and ICMPv6 sockets, where the caller had the privilege.
    pub raw_icmp: [Option<OwnedFd>; 2],
    /// The other end is the supervisor: SOCK_SEQPACKET, messages of [`Update`] and back. Its end means exit.
    pub supervisor: OwnedFd,
    /// How the worker waits.
    pub pacing: Pacing,
    /// Where the host side sends from.
    pub outbound: Option<Outbound>,
}

/// What the tap was set up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapOffload {
    /// `IFF_VNET_HDR`: every frame is preceded by 10 bytes of `virtio_net_hdr`.
    pub vnet_hdr: bool,
    /// TSO4 and TSO6.
    pub tso: bool,
    /// USO (Linux 6.2).
    pub uso: bool,
}

/// What the supervisor tells a running engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// The host's resolvers changed.
    Resolvers(Vec<std::net::SocketAddr>),
    /// The host's own addresses changed.
    Owned(Vec<std::net::IpAddr>),
}

/// Drops every capability, sets no_new_privs, and moves packets until the supervisor's end closes. One line
/// `engine ready` (a message on the supervisor's socket) says that the loop runs.
///
/// # Errors
/// The engine could not start; the text says what failed.
pub fn run(setup: Setup) -> std::io::Result<()> {
    let _ = setup;
    todo!()
}
