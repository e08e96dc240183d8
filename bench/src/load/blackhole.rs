//! The job `Blackhole`: round trips of a byte while TCP connections to an address that never answers are
//! pending.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, connect};

use crate::job::JobMessage;

use super::client::JobClient;
use super::control::ControlConnection;
use super::latency;
use super::round_trip::EchoConnection;
use super::{descriptors, failed, socket, unreachable};

/// Destination port of the pending connections: discard (RFC 863). If the address exists by mistake, that
/// host does not listen there either.
const PORT: u16 = 9;

/// Descriptors of the client process besides those of the pending connections.
const OTHER_DESCRIPTORS: u64 = 64;

/// Runs the load client for the job `Blackhole`. The pending connections need no server.
pub(crate) fn run(client: &mut JobClient, pending: u32, address: IpAddr) -> Result<(), JobMessage> {
    descriptors::allow(u64::from(pending) + OTHER_DESCRIPTORS)?;
    let control = ControlConnection::open(client)?;
    let mut pinger = EchoConnection::connect(client)?;
    let to = SocketAddr::new(address, PORT);
    let connections = (0..pending)
        .map(|_| attempt(to))
        .collect::<Result<Vec<_>, JobMessage>>()?;
    let all_pending = || match ended(&connections, PollFlags::OUT)? {
        0 => Ok(()),
        count => Err(format!("{count} of {pending} connections to {to} ended")),
    };
    latency::run(client.warm_up(), || pinger.exchange())?;
    all_pending().map_err(unreachable)?;
    client.begin()?;
    let samples = latency::run(client.duration(), || pinger.exchange())?;
    all_pending().map_err(failed)?;
    client.end(latency::results(&[samples], control.congestion_control())?)
}

fn attempt(to: SocketAddr) -> Result<OwnedFd, JobMessage> {
    let begin = || {
        let socket = socket::stream_socket(to, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        match connect(&socket, &to) {
            Err(Errno::INPROGRESS) => Ok(Ok(socket)),
            Ok(()) => Ok(Err("the address answers".to_owned())),
            Err(error) => Err(error.into()),
        }
    };
    begin()
        .unwrap_or_else(|error: std::io::Error| Err(error.to_string()))
        .map_err(|why| unreachable(format_args!("no pending connection to {to}: {why}")))
}

/// Returns the number of `connections` at which poll(2) reports one of `events`.
pub(crate) fn ended(connections: &[OwnedFd], events: PollFlags) -> Result<usize, String> {
    let mut polled: Vec<_> = connections
        .iter()
        .map(|socket| PollFd::new(socket, events))
        .collect();
    poll(&mut polled, Some(&Timespec::default())).map_err(|error| error.to_string())
}
