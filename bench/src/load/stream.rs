//! The job `Stream`: bulk data in one direction, with position stamps that the receiver checks.

use std::io::{self, Read, Write};
use std::time::Instant;

use crate::job::{Direction, JobMessage, JobResults};

use super::client::JobClient;
use super::control::{Checkpoint, ControlConnection};
use super::fault::{Fault, NoFault};
use super::flow::{BulkFlow, all_moved};
use super::stamp::{BLOCK, BUFFER, StampChecker, stamp};
use super::{failed, socket, stalled_or_failed};

/// Sends stamped bytes until the connection ends. Returns the reason of the end.
pub(crate) fn send<F: Fault>(flow: &BulkFlow) -> JobMessage {
    let mut buffer = vec![0; BUFFER];
    let (mut position, mut unsent) = (0, &mut [][..]);
    loop {
        if unsent.is_empty() {
            stamp(&mut buffer, position);
            F::corrupt(&mut buffer);
            unsent = &mut buffer;
        }
        F::block(position);
        match (&flow.socket).write(unsent) {
            Ok(sent) => {
                unsent = &mut unsent[sent..];
                position += sent as u64;
                flow.set_moved(position);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return stalled_or_failed(&error, position),
        }
    }
}

/// Receives bytes until the connection ends or a stamp is wrong. Returns the reason of the end.
pub(crate) fn receive<F: Fault>(flow: &BulkFlow) -> JobMessage {
    let mut checker = StampChecker::new();
    loop {
        F::block(checker.position());
        let room = checker.room();
        let len = match (&flow.socket).read(room) {
            Ok(0) => return failed(format_args!("connection closed at byte {}", checker.position())),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return stalled_or_failed(&error, checker.position()),
        };
        F::corrupt(&mut room[..len]);
        if let Err(position) = checker.check(len) {
            return failed(format_args!(
                "wrong stamp in the block at byte {position} (of {BLOCK} bytes)"
            ));
        }
        flow.set_moved(checker.position());
    }
}

/// Runs the load client for the job `Stream`.
pub(crate) fn run(client: &mut JobClient, direction: Direction, streams: u16) -> Result<(), JobMessage> {
    let control = ControlConnection::open(client)?;
    let port = match direction {
        Direction::Up => client.ports().sink,
        Direction::Down => client.ports().source,
    };
    let flows = (0..streams)
        .map(|_| {
            let mut socket = socket::connect(client.at(port), client.timeout())?;
            socket.write_all(&control.session()).map_err(failed)?;
            Ok(BulkFlow::new(socket))
        })
        .collect::<Result<Vec<_>, JobMessage>>()?;
    transfer(client, control, direction, &flows)
}

/// Transfers bulk data over connections of the session, and measures its rate.
pub(crate) fn transfer(
    client: &mut JobClient,
    mut control: ControlConnection,
    direction: Direction,
    flows: &[BulkFlow],
) -> Result<(), JobMessage> {
    std::thread::scope(|scope| {
        let _ending = FlowCloser(flows);
        for flow in flows {
            scope.spawn(move || {
                flow.end(Err(match direction {
                    Direction::Up => send::<NoFault>(flow),
                    Direction::Down => receive::<NoFault>(flow),
                }));
            });
        }
        measure(client, &mut control, direction, flows)
    })
}

fn measure(
    client: &mut JobClient,
    control: &mut ControlConnection,
    direction: Direction,
    flows: &[BulkFlow],
) -> Result<(), JobMessage> {
    let (clock, timeout) = (Instant::now(), client.timeout());
    // The receiver's count and clock are used: the server's for an upload, the client's for a download.
    let mut checkpoint = || match direction {
        Direction::Up => {
            let slowest = flows.iter().map(BulkFlow::moved).min();
            control.checkpoint(slowest.unwrap_or(0))
        }
        Direction::Down => Ok(Checkpoint {
            count: all_moved(flows.iter(), timeout)?,
            seconds: clock.elapsed().as_secs_f64(),
        }),
    };
    std::thread::sleep(client.warm_up());
    let first = checkpoint()?;
    client.begin()?;
    std::thread::sleep(client.duration());
    let last = checkpoint()?;
    let megabits = (last.count - first.count) as f64 * 8.0 / 1e6;
    client.end(JobResults {
        values: [("mbps".to_owned(), megabits / (last.seconds - first.seconds))].into(),
        congestion_control: control.congestion_control(),
        ..JobResults::default()
    })
}

/// A guard that closes the flows on drop, which ends the threads that transfer their data.
struct FlowCloser<'a>(&'a [BulkFlow]);

impl Drop for FlowCloser<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(BulkFlow::close);
    }
}
