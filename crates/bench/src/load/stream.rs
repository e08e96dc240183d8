//! Bytes one way, stamped and checked.

use std::io::{self, Read, Write};
use std::time::Instant;

use crate::job::{Direction, Findings, Word};

use super::control::{Control, Mark};
use super::fault::{Fault, Sound};
use super::flow::{Flow, all_moved};
use super::stage::Stage;
use super::stamp::{BLOCK, BUFFER, Checker, stamp};
use super::{failed, socket, stalled_or_failed};

/// Sends until the connection ends, and says how it did.
pub(crate) fn send<F: Fault>(flow: &Flow) -> Word {
    let mut buffer = vec![0; BUFFER];
    let (mut position, mut unsent) = (0, &mut [][..]);
    loop {
        if unsent.is_empty() {
            stamp(&mut buffer, position);
            F::spoil(&mut buffer);
            unsent = &mut buffer;
        }
        F::hold(position);
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

/// Receives until the connection ends or has a wrong stamp, and says how it did.
pub(crate) fn receive<F: Fault>(flow: &Flow) -> Word {
    let mut checker = Checker::new();
    loop {
        F::hold(checker.position());
        let room = checker.room();
        let len = match (&flow.socket).read(room) {
            Ok(0) => return failed(format_args!("connection closed at byte {}", checker.position())),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return stalled_or_failed(&error, checker.position()),
        };
        F::spoil(&mut room[..len]);
        if let Err(position) = checker.check(len) {
            return failed(format_args!(
                "wrong stamp in the block at byte {position} (of {BLOCK} bytes)"
            ));
        }
        flow.set_moved(checker.position());
    }
}

/// The client's side.
pub(crate) fn run(stage: &mut Stage, direction: Direction, streams: u16) -> Result<(), Word> {
    let mut control = Control::open(stage)?;
    let port = match direction {
        Direction::Up => stage.ports().sink,
        Direction::Down => stage.ports().source,
    };
    let flows = (0..streams)
        .map(|_| {
            let mut socket = socket::connect(stage.at(port), stage.patience())?;
            socket.write_all(&control.session()).map_err(failed)?;
            Ok(Flow::new(socket))
        })
        .collect::<Result<Vec<_>, Word>>()?;
    std::thread::scope(|scope| {
        let _ending = Ending(&flows);
        for flow in &flows {
            scope.spawn(move || {
                flow.end(Err(match direction {
                    Direction::Up => send::<Sound>(flow),
                    Direction::Down => receive::<Sound>(flow),
                }));
            });
        }
        measure(stage, &mut control, direction, &flows)
    })
}

fn measure(
    stage: &mut Stage,
    control: &mut Control,
    direction: Direction,
    flows: &[Flow],
) -> Result<(), Word> {
    let (clock, patience) = (Instant::now(), stage.patience());
    // The receiver's count and clock.
    let mut mark = || match direction {
        Direction::Up => {
            let slowest = flows.iter().map(Flow::moved).min();
            control.mark(slowest.unwrap_or(0))
        }
        Direction::Down => Ok(Mark {
            count: all_moved(flows.iter(), patience)?,
            seconds: clock.elapsed().as_secs_f64(),
        }),
    };
    std::thread::sleep(stage.warm_up());
    let first = mark()?;
    stage.begin()?;
    std::thread::sleep(stage.duration());
    let last = mark()?;
    let megabits = (last.count - first.count) as f64 * 8.0 / 1e6;
    stage.end(Findings {
        values: [("mbps".to_owned(), megabits / (last.seconds - first.seconds))].into(),
        congestion_control: control.congestion_control(),
        ..Findings::default()
    })
}

/// Ends the threads that wait for connections.
struct Ending<'a>(&'a [Flow]);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(Flow::close);
    }
}
