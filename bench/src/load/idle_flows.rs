//! The job `IdleFlows`: round trips of a byte while many idle TCP connections are open.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use pontoon_sys::tcp::reset_on_close;
use rustix::event::PollFlags;

use crate::job::{JobMessage, ServerPorts};

use super::blackhole::ended;
use super::client::JobClient;
use super::control::ControlConnection;
use super::round_trip::EchoConnection;
use super::{descriptors, failed, latency, unreachable};

/// Number of threads that open the connections.
const OPENERS: u32 = 16;

/// Descriptors of the client process besides those of the idle connections.
const OTHER_DESCRIPTORS: u64 = 64;

/// Additional time limit for each connection to be opened.
const TIME_PER_FLOW: Duration = Duration::from_millis(1);

/// Interval at which the client requests the number of connections that the server has accepted.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Runs the load client for the job `IdleFlows`.
pub(crate) fn run(client: &mut JobClient, flows: u32) -> Result<(), JobMessage> {
    descriptors::allow(u64::from(flows) + OTHER_DESCRIPTORS)?;
    let mut control = ControlConnection::open(client)?;
    let mut pinger = EchoConnection::connect(client)?;
    let deadline = Instant::now() + client.timeout() + TIME_PER_FLOW * flows;
    let connections = open(client, flows, deadline)?;
    while control.checkpoint(0)?.count < flows.into() {
        if Instant::now() > deadline {
            let arrived = control.checkpoint(0)?.count;
            return Err(unreachable(format_args!(
                "of {flows} connections {arrived} arrived at the server"
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    latency::run(client.warm_up(), || pinger.exchange())?;
    client.begin()?;
    let samples = latency::run(client.duration(), || pinger.exchange())?;
    match ended(&connections, PollFlags::IN | PollFlags::RDHUP).map_err(failed)? {
        0 => client.end(latency::results(&[samples], control.congestion_control())?),
        count => Err(failed(format_args!("{count} of {flows} idle connections ended"))),
    }
}

/// Opens `flows` connections, distributed over the server's ports: a client has fewer ephemeral ports towards
/// one destination port.
fn open(client: &JobClient, flows: u32, deadline: Instant) -> Result<Vec<OwnedFd>, JobMessage> {
    let open_some = |first: u32| {
        (first..flows)
            .step_by(OPENERS as usize)
            .map(|index| {
                let port = client.ports().idle[index as usize % ServerPorts::IDLE];
                let left = deadline.saturating_duration_since(Instant::now());
                connect(client.at(port), left).map_err(|error| refused(index, flows, &error))
            })
            .collect::<Result<Vec<_>, JobMessage>>()
    };
    std::thread::scope(|scope| {
        let openers: Vec<_> = (0..OPENERS)
            .map(|first| scope.spawn(move || open_some(first)))
            .collect();
        let opened = openers.into_iter().map(|opener| {
            opener
                .join()
                .unwrap_or_else(|_| Err(failed("a connecting thread panicked")))
        });
        Ok(opened
            .collect::<Result<Vec<_>, JobMessage>>()?
            .into_iter()
            .flatten()
            .collect())
    })
}

fn connect(to: SocketAddr, timeout: Duration) -> io::Result<OwnedFd> {
    if timeout.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let socket = TcpStream::connect_timeout(&to, timeout)?;
    // A reset at close avoids TIME-WAIT, in which these connections would occupy the ports that the next
    // stack needs.
    reset_on_close(&socket)?;
    Ok(socket.into())
}

fn refused(index: u32, flows: u32, error: &io::Error) -> JobMessage {
    let limit = match error.kind() {
        io::ErrorKind::AddrNotAvailable => " (net.ipv4.ip_local_port_range)",
        _ => "",
    };
    unreachable(format_args!(
        "connection {} of {flows}: {error}{limit}",
        index + 1
    ))
}
