//! Edge: a process that moves a relay's datagrams, and nothing else.
//!
//! It opens nothing: rings and sockets come from the supervisor, with the rules, as [`messages`]; it enters the sandbox
//! before it has the first of them. What it counts lies in memory that outlives it.
//!
//! [`worker`] is the loop. It waits for something to arrive, lets more arrive for as long as it may (`--max-delay`),
//! and then takes a batch from each [`input`]: every packet is parsed and matched where it lies in the ring, put with
//! others of its kind ([`pontoon_relay::Gather`]), and each burst is one send for each output ([`sender`]) whose slices
//! point into the ring. Then the slots go back to the kernel. There is no other queue: what is too much is dropped by
//! the kernel at the ring, before any work was done for it, and counted there.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use pontoon_sandbox::Sandbox;
use pontoon_sys::disabled::Disabled;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{set_current_timer_slack, set_name};
use tracing::{debug, warn};

mod counters;
mod forwarder;
mod input;
pub mod messages;
mod querier;
mod sender;
mod worker;

pub use counters::Counters;

/// Enters the sandbox, says [`messages::READY`], and moves datagrams until the supervisor, which is at the other end of
/// `control`, goes away.
///
/// # Errors
/// The sandbox could not be entered; the supervisor said something unknown; the kernel's.
pub fn run(control: OwnedFd, sandbox: Sandbox, disabled: &Disabled) -> io::Result<()> {
    let _ = set_name(c"pontoon-relay");
    // Where the supervisor is dead already, its end of the channel is closed, too.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A sleep of 100 us would otherwise take 150.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let worker = worker::Worker::new(control)?;
    let layers = sandbox.enter(disabled)?;
    match layers.any_refused() {
        true => warn!("the sandbox is incomplete: {}", layers.missing()),
        false => debug!("sandbox: {layers}"),
    }
    worker.run()
}
