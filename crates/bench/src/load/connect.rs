//! Connect, one byte there, one byte back, close.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::job::Word;

use super::control::Control;
use super::fault::Fault;
use super::fork::{Child, Turn};
use super::latency::{self, Miss, Sheet};
use super::server::thread;
use super::stage::Stage;
use super::{failed, socket};

/// Threads blocked in accept.
const ACCEPTORS: usize = 4;

/// A client that connects and then says nothing holds a thread for so long.
const SILENCE: Duration = Duration::from_secs(10);

const BYTE: [u8; 1] = *b"z";

/// Serves `listener`, each connection in the thread that accepted it.
pub(crate) fn serve<F: Fault>(listener: &Arc<TcpListener>) -> io::Result<()> {
    // Accepted sockets inherit it, so that it costs them nothing.
    socket::bound_waits(listener, SILENCE)?;
    for _ in 0..ACCEPTORS {
        let listener = Arc::clone(listener);
        thread("connect", move || {
            loop {
                // An accept that fails has waited long enough, or its connection is gone.
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

/// Transactions with the server at `to`. One that waits longer than `patience` is a stall.
pub(crate) fn transaction(to: SocketAddr, patience: Duration) -> impl FnMut() -> Result<(), Miss> {
    let mut done = 0;
    move || {
        let error = match transact(to, patience) {
            Ok(()) => {
                done += 1;
                return Ok(());
            }
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            // As connect calls its timeout.
            Some(Errno::AGAIN | Errno::INPROGRESS) => Err(Miss::Ends(Word::Stalled { at_byte: done })),
            _ => Err(Miss::Counts(error.to_string())),
        }
    }
}

fn transact(to: SocketAddr, patience: Duration) -> io::Result<()> {
    let socket = socket::stream_socket(to, SocketFlags::CLOEXEC)?;
    socket::bound_waits(&socket, patience)?;
    rustix::net::connect(&socket, &to)?;
    let mut back = [0];
    rustix::io::write(&socket, &BYTE)?;
    match rustix::io::read(&socket, &mut back)? {
        1 if back == BYTE => Ok(()),
        1 => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "another byte came back",
        )),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The client's side: `clients` processes.
pub(crate) fn run(stage: &mut Stage, clients: u16) -> Result<(), Word> {
    let to = stage.at(stage.ports().connect);
    let (warm_up, duration, patience) = (stage.warm_up(), stage.duration(), stage.patience());
    let mut children = (0..clients)
        .map(|_| Child::new(|turn| part(turn, to, warm_up, duration, patience)))
        .collect::<io::Result<Vec<_>>>()
        .map_err(|error| failed(format_args!("cannot fork: {error}")))?;
    let control = Control::open(stage)?;
    for child in &mut children {
        child.wait_ready(warm_up + patience)?;
    }
    stage.begin()?;
    for child in &mut children {
        child.start()?;
    }
    let sheets = children
        .iter_mut()
        .map(|child| child.result(duration + patience))
        .collect::<Result<Vec<_>, Word>>()?;
    stage.end(latency::findings(&sheets, control.congestion_control())?)
}

/// One client.
fn part(
    turn: &mut Turn,
    to: SocketAddr,
    warm_up: Duration,
    duration: Duration,
    patience: Duration,
) -> Result<Sheet, Word> {
    let mut transaction = transaction(to, patience);
    latency::run(warm_up, &mut transaction)?;
    turn.wait()?;
    latency::run(duration, transaction)
}
