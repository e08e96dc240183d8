//! Edge: the process that moves packets. It knows both halves: links and host sockets on one side, the engine on
//! the other, and the loop between them.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use pontoon_engine::Config;
use pontoon_sys::{caps, seqpacket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, warn};

mod cpus;
pub mod host;
mod limits;
pub mod link;
mod mesh;
pub mod messages;
#[cfg(test)]
mod namespace;
mod pacing;
mod worker;
mod workers;

pub use link::Attachment;
pub use link::socket::Source;
pub use messages::Update;
pub use pacing::Pacing;
pub use pontoon_sys::tun::TapOffload;

use link::Link;
use link::socket::{Framing, Packet, Socket, Stream};
use link::tap::Tap;
use messages::Report;

/// Where the host side sends from (`--outbound`).
#[derive(Clone, Debug)]
pub enum Outbound {
    /// An address, for its own family.
    Address(IpAddr),
    /// An interface (`SO_BINDTODEVICE`).
    Interface(String),
}

/// Everything that the engine process is born with. Descriptors were opened by the supervisor.
#[derive(Debug)]
pub struct Setup {
    /// What the engine is told.
    pub config: Config,
    /// Addresses that the host owns now.
    pub owned: Vec<IpAddr>,
    /// One socket for each entry of `config.published`, in its order: listening (TCP) or bound (UDP).
    pub published: Vec<OwnedFd>,
    /// Raw ICMP and ICMPv6 sockets, where the caller had the privilege.
    pub raw_icmp: [Option<OwnedFd>; 2],
    /// The other end is the supervisor: SOCK_SEQPACKET, messages of [`Update`] and back. Its end means exit.
    pub supervisor: OwnedFd,
    /// How a worker waits.
    pub pacing: Pacing,
    /// Where the host side sends from.
    pub outbound: Option<Outbound>,
}

/// Drops every capability, sets no_new_privs, and moves packets until the supervisor's end closes or the guest is gone.
/// [`Report::Ready`] on the supervisor's socket says that the workers are about to run.
///
/// The process has one thread when this is called: the first worker's. It dies of SIGTERM; SIGPIPE is of no concern, as
/// the Rust runtime ignores it and no send raises it.
///
/// # Errors
/// The engine could not start, or not go on; the text says what failed.
pub fn run(setup: Setup, attachment: Attachment) -> io::Result<()> {
    caps::drop_all().map_err(|error| say("cannot drop privileges", &error))?;
    raise_descriptor_limit();
    carry(setup, attachment)
}

/// Moves packets until the supervisor's end closes or the guest is gone, as [`run`] does, and leaves the process as it is:
/// for a thread of somebody else's.
///
/// # Errors
/// The engine could not start, or not go on; the text says what failed.
pub fn carry(setup: Setup, attachment: Attachment) -> io::Result<()> {
    match attachment {
        Attachment::Tap { queues, offload } => {
            let mtu = setup.config.mtu;
            let tap = |queue| Tap::new(queue, offload, mtu);
            let taps: io::Result<Vec<_>> = queues.into_iter().map(tap).collect();
            let taps = taps.map_err(|error| say("cannot take over the tap", &error))?;
            serve(setup, taps)
        }
        Attachment::Stream(source) => serve_socket::<Stream>(setup, source),
        Attachment::Packet(source) => serve_socket::<Packet>(setup, source),
        Attachment::VhostUser { source, workers } => {
            let links = link::vhost_user::open(source, workers, setup.config.mtu)
                .map_err(|error| say("cannot take over the guest's socket", &error))?;
            serve(setup, links)
        }
        Attachment::InProcess(link) => serve(setup, vec![*link]),
    }
}

fn serve_socket<F: Framing>(setup: Setup, source: Source) -> io::Result<()> {
    let link = Socket::<F>::new(source, setup.config.mtu)
        .map_err(|error| say("cannot take over the guest's socket", &error))?;
    serve(setup, vec![link])
}

/// Runs a worker on each of `links`.
fn serve<L: Link>(setup: Setup, links: Vec<L>) -> io::Result<()> {
    let voice = setup.supervisor.try_clone()?;
    let workers = workers::build(setup, links)?;
    seqpacket::send(&voice, &Report::Ready.encode(), &[])
        .map_err(|error| say("cannot tell the supervisor", &error))?;
    drop(voice);
    let end = workers::run(workers);
    debug!("the loop ended: {end:?}");
    end.map(|_| ())
        .map_err(|error| say("the engine's loop failed", &error))
}

/// Raises the soft limit of descriptors to the hard one: each flow has one.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!(
            "cannot raise the limit of open files to its hard value {:?}: {error}",
            limit.maximum
        );
    }
}

fn say(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
mod tests;
