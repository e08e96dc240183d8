//! The job `Connect`: TCP connections one after the other, each with one byte to the server and back.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::job::JobMessage;

use super::client::JobClient;
use super::control::ControlConnection;
use super::fault::Fault;
use super::fork::{ClientProcess, StartBarrier};
use super::latency::{self, LatencySamples, TransactionError};
use super::server::thread;
use super::{failed, socket};

/// Number of the server's threads that block in accept(2).
const ACCEPTORS: usize = 4;

/// Timeout of a connection whose client sends nothing, as the connection occupies an accepting thread.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

const BYTE: [u8; 1] = *b"z";

/// Serves `listener`; each connection is served in the thread that accepted it.
pub(crate) fn serve<F: Fault>(listener: &Arc<TcpListener>) -> io::Result<()> {
    // Accepted sockets inherit the timeouts of the listener, which saves a setsockopt(2) for each connection.
    socket::bound_waits(listener, IDLE_TIMEOUT)?;
    for _ in 0..ACCEPTORS {
        let listener = Arc::clone(listener);
        thread("connect", move || {
            loop {
                // The error is the timeout of accept, or that the client has closed its connection.
                let _ = answer::<F>(&listener);
            }
        })?;
    }
    Ok(())
}

fn answer<F: Fault>(listener: &TcpListener) -> io::Result<()> {
    let (mut socket, _) = listener.accept()?;
    let mut byte = BYTE;
    socket.read_exact(&mut byte)?;
    F::delay();
    socket.write_all(&byte)
}

/// Returns a function that runs one transaction with the server at `to`. A wait longer than `timeout` is a
/// stall.
pub(crate) fn transaction(to: SocketAddr, timeout: Duration) -> impl FnMut() -> Result<(), TransactionError> {
    let mut done = 0;
    move || {
        let error = match transact(to, timeout) {
            Ok(()) => {
                done += 1;
                return Ok(());
            }
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            // connect(2) with SO_SNDTIMEO returns EINPROGRESS after the timeout.
            Some(Errno::AGAIN | Errno::INPROGRESS) => {
                Err(TransactionError::Fatal(JobMessage::Stalled { at_byte: done }))
            }
            _ => Err(TransactionError::Counted(error.to_string())),
        }
    }
}

fn transact(to: SocketAddr, timeout: Duration) -> io::Result<()> {
    let socket = socket::stream_socket(to, SocketFlags::CLOEXEC)?;
    socket::bound_waits(&socket, timeout)?;
    rustix::net::connect(&socket, &to)?;
    let mut back = [0];
    rustix::io::write(&socket, &BYTE)?;
    match rustix::io::read(&socket, &mut back)? {
        1 if back == BYTE => Ok(()),
        1 => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the echoed byte differs from the byte sent",
        )),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Runs the load client for the job `Connect` with `clients` processes.
pub(crate) fn run(client: &mut JobClient, clients: u16) -> Result<(), JobMessage> {
    let to = client.at(client.ports().connect);
    let (warm_up, duration, timeout) = (client.warm_up(), client.duration(), client.timeout());
    let mut children = (0..clients)
        .map(|_| ClientProcess::new(|barrier| run_client(barrier, to, warm_up, duration, timeout)))
        .collect::<io::Result<Vec<_>>>()
        .map_err(|error| failed(format_args!("cannot fork: {error}")))?;
    let control = ControlConnection::open(client)?;
    for child in &mut children {
        child.wait_ready(warm_up + timeout)?;
    }
    client.begin()?;
    for child in &mut children {
        child.start()?;
    }
    let processes = children
        .iter_mut()
        .map(|child| child.result(duration + timeout))
        .collect::<Result<Vec<_>, JobMessage>>()?;
    client.end(latency::results(&processes, control.congestion_control())?)
}

/// Runs one of the client processes.
fn run_client(
    barrier: &mut StartBarrier,
    to: SocketAddr,
    warm_up: Duration,
    duration: Duration,
    timeout: Duration,
) -> Result<LatencySamples, JobMessage> {
    let mut transaction = transaction(to, timeout);
    latency::run(warm_up, &mut transaction)?;
    barrier.wait()?;
    latency::run(duration, transaction)
}
