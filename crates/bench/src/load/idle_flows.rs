//! Round trips while many connections are open and silent.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use pontoon_sys::tcp::reset_on_close;
use rustix::event::PollFlags;

use crate::job::{Ports, Word};

use super::blackhole::ended;
use super::control::Control;
use super::round_trip::Pinger;
use super::stage::Stage;
use super::{descriptors, failed, latency, unreachable};

/// Threads that connect.
const OPENERS: u32 = 16;

/// Descriptors of this process that are not idle flows.
const OTHER_DESCRIPTORS: u64 = 64;

/// What a connection may take beside the patience for all, one with the other.
const EACH: Duration = Duration::from_millis(1);

/// How often the client asks whether all have arrived.
const LOOK: Duration = Duration::from_millis(10);

/// The client's side.
pub(crate) fn run(stage: &mut Stage, flows: u32) -> Result<(), Word> {
    descriptors::allow(u64::from(flows) + OTHER_DESCRIPTORS)?;
    let mut control = Control::open(stage)?;
    let mut pinger = Pinger::connect(stage)?;
    let deadline = Instant::now() + stage.patience() + EACH * flows;
    let connections = open(stage, flows, deadline)?;
    while control.mark(0)?.count < flows.into() {
        if Instant::now() > deadline {
            let arrived = control.mark(0)?.count;
            return Err(unreachable(format_args!(
                "of {flows} connections {arrived} arrived at the server"
            )));
        }
        std::thread::sleep(LOOK);
    }
    latency::run(stage.warm_up(), || pinger.exchange())?;
    stage.begin()?;
    let sheet = latency::run(stage.duration(), || pinger.exchange())?;
    match ended(&connections, PollFlags::IN | PollFlags::RDHUP).map_err(failed)? {
        0 => stage.end(latency::findings(&[sheet], control.congestion_control())?),
        count => Err(failed(format_args!("{count} of {flows} idle connections ended"))),
    }
}

/// Opens `flows` connections, spread over the server's ports: one port has fewer than the client has ports of its own.
fn open(stage: &Stage, flows: u32, deadline: Instant) -> Result<Vec<OwnedFd>, Word> {
    let open_some = |first: u32| {
        (first..flows)
            .step_by(OPENERS as usize)
            .map(|index| {
                let port = stage.ports().idle[index as usize % Ports::IDLE];
                let left = deadline.saturating_duration_since(Instant::now());
                connect(stage.at(port), left).map_err(|error| refused(index, flows, &error))
            })
            .collect::<Result<Vec<_>, Word>>()
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
            .collect::<Result<Vec<_>, Word>>()?
            .into_iter()
            .flatten()
            .collect())
    })
}

fn connect(to: SocketAddr, patience: Duration) -> io::Result<OwnedFd> {
    if patience.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let socket = TcpStream::connect_timeout(&to, patience)?;
    // So many in TIME-WAIT would be in the way of the next stack's.
    reset_on_close(&socket)?;
    Ok(socket.into())
}

fn refused(index: u32, flows: u32, error: &io::Error) -> Word {
    let limit = match error.kind() {
        io::ErrorKind::AddrNotAvailable => " (net.ipv4.ip_local_port_range)",
        _ => "",
    };
    unreachable(format_args!(
        "connection {} of {flows}: {error}{limit}",
        index + 1
    ))
}
