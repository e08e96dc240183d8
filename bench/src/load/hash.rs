//! The job `Hash`: a transfer of pseudo-random bytes that both ends hash.

use std::io::{self, Read, Write};
use std::net::Shutdown;

use blake3::{Hash, Hasher, OutputReader};

use crate::job::{Direction, JobMessage, JobResults};

use super::client::JobClient;
use super::control::ControlConnection;
use super::fault::{Fault, NoFault};
use super::flow::BulkFlow;
use super::stamp::BUFFER;
use super::{failed, socket, stalled_or_failed};

/// Returns a generator of the pseudo-random bytes (BLAKE3) for `seed`.
fn content(seed: u64) -> OutputReader {
    Hasher::new().update(&seed.to_le_bytes()).finalize_xof()
}

/// Sends `bytes` bytes and returns their hash.
pub(crate) fn send<F: Fault>(flow: &BulkFlow, seed: u64, bytes: u64) -> Result<Hash, JobMessage> {
    let (mut hasher, mut content) = (Hasher::new(), content(seed));
    let mut buffer = vec![0; BUFFER];
    let mut position = 0;
    while position < bytes {
        let len = usize::try_from(bytes - position).map_or(BUFFER, |left| left.min(BUFFER));
        let part = &mut buffer[..len];
        content.fill(part);
        hasher.update(part);
        F::corrupt(part);
        F::block(position);
        let sent = (&flow.socket)
            .write(part)
            .map_err(|error| stalled_or_failed(&error, position))?;
        position += sent as u64;
        flow.set_moved(position);
        if sent < len {
            // A blocking socket accepts fewer bytes only after its timeout (SO_SNDTIMEO).
            return Err(JobMessage::Stalled { at_byte: position });
        }
    }
    flow.socket.shutdown(Shutdown::Write).map_err(failed)?;
    Ok(hasher.finalize())
}

/// Receives until the end of the stream, which must be after `bytes` bytes, and returns the hash of the
/// bytes.
pub(crate) fn receive<F: Fault>(flow: &BulkFlow, bytes: u64) -> Result<Hash, JobMessage> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; BUFFER];
    let mut position = 0;
    loop {
        F::block(position);
        match (&flow.socket).read(&mut buffer) {
            Ok(0) if position == bytes => return Ok(hasher.finalize()),
            Ok(0) => {
                return Err(failed(format_args!(
                    "the stream ended after {position} of {bytes} bytes"
                )));
            }
            Ok(len) => {
                F::corrupt(&mut buffer[..len]);
                hasher.update(&buffer[..len]);
                position += len as u64;
                flow.set_moved(position);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(stalled_or_failed(&error, position)),
        }
    }
}

/// Runs the load client for the job `Hash`.
pub(crate) fn run(client: &mut JobClient, direction: Direction, bytes: u64) -> Result<(), JobMessage> {
    let mut control = ControlConnection::open(client)?;
    let port = match direction {
        Direction::Up => client.ports().sink,
        Direction::Down => client.ports().source,
    };
    let mut socket = socket::connect(client.at(port), client.timeout())?;
    socket.write_all(&control.session()).map_err(failed)?;
    let flow = BulkFlow::new(socket);
    client.begin()?;
    let ours = match direction {
        Direction::Up => send::<NoFault>(&flow, u64::from_le_bytes(control.session()), bytes),
        Direction::Down => receive::<NoFault>(&flow, bytes),
    }?;
    let theirs = control.hash(flow.moved())?;
    let ours = ours.to_hex();
    if *ours != *theirs {
        return Err(failed(format_args!(
            "{bytes} bytes with hash {ours} at this end and {theirs} at the other"
        )));
    }
    client.end(JobResults {
        congestion_control: control.congestion_control(),
        ..JobResults::default()
    })
}
