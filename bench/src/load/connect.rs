//! Connect, one byte to the server and back, close.

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
use super::fork::{Child, StartBarrier};
use super::latency::{self, Samples, TransactionError};
use super::server::thread;
use super::{failed, socket};

/// Number of threads blocked in accept.
const ACCEPTORS: usize = 4;

/// Timeout of a connection whose client sends nothing; it holds a thread meanwhile.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

const BYTE: [u8; 1] = *b"z";

/// Serves `listener`; each connection is served in the thread that accepted it.
pub(crate) fn serve<F: Fault>(listener: &Arc<TcpListener>) -> io::Result<()> {
    // Accepted sockets inherit the timeout, which saves a system call for each.
    socket::bound_waits(listener, IDLE_TIMEOUT)?;
    for _ in 0..ACCEPTORS {
        let listener = Arc::clone(listener);
        thread("connect", move || {
            loop {
                // Errors are a timeout of accept, or a connection that the client has closed.
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

/// Returns a function that performs a transaction with the server at `to`. A wait longer than `timeout` is a stall.
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
            // EINPROGRESS is the timeout of connect(2).
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

/// Runs the client, which starts `clients` processes.
pub(crate) fn run(client: &mut JobClient, clients: u16) -> Result<(), JobMessage> {
    let to = client.at(client.ports().connect);
    let (warm_up, duration, timeout) = (client.warm_up(), client.duration(), client.timeout());
    let mut children = (0..clients)
        .map(|_| Child::new(|barrier| run_client(barrier, to, warm_up, duration, timeout)))
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

/// Runs one client process.
fn run_client(
    barrier: &mut StartBarrier,
    to: SocketAddr,
    warm_up: Duration,
    duration: Duration,
    timeout: Duration,
) -> Result<Samples, JobMessage> {
    let mut transaction = transaction(to, timeout);
    latency::run(warm_up, &mut transaction)?;
    barrier.wait()?;
    latency::run(duration, transaction)
}
