//! The part of an engine's turn that is the same in all simulated networks.

use pontoon_engine::{Engine, Host, Instant};

use crate::link::{RoomEvent, SimLink};

/// Number of rounds over the ready flows after which the engine counts as being in an endless loop.
const MOST_ROUNDS: u32 = 20_000;

/// Reports room in the link to the engine, if there was an event, and processes the timers that are due.
pub fn handle_due<H: Host>(
    engine: &mut Engine<H>,
    link: &mut SimLink,
    host: &mut H,
    room: RoomEvent,
    now: Instant,
) {
    if room == RoomEvent::Taken {
        engine.handle_link_ready(link, host, now);
    }
    if engine.next_timeout().is_some_and(|at| at <= now) {
        engine.handle_timeout(link, host, now);
    }
}

/// Continues with ready flows until there are none.
///
/// # Errors
/// There are always more.
pub fn handle_all_ready<H: Host>(
    engine: &mut Engine<H>,
    link: &mut SimLink,
    host: &mut H,
    now: Instant,
) -> Result<(), String> {
    for _ in 0..MOST_ROUNDS {
        if !engine.has_ready() {
            return Ok(());
        }
        engine.handle_ready(link, host, now);
    }
    Err("a flow is always ready for more: a busy loop".to_owned())
}
