//! The sandboxed worker process of `pontoon relay`: forwards datagrams, and runs the IGMP/MLD queriers of `--proxy`.
//!
//! It opens no socket: rings and sockets come from the supervisor, with the rules, as [`messages`]. It enters the sandbox
//! before it receives the first of them. Its counters are in memory that outlives it.
//!
//! `worker` is the loop. It waits for a packet, waits for more for the batch delay (`--max-delay`), and then takes a batch
//! from each `input`. Each packet is parsed and matched where it lies in the ring and added to a burst
//! ([`pontoon_relay::Gather`]). Each burst is one send for each output (`sender`), whose slices point into the ring. Then
//! the slots are returned to the kernel. There is no other queue: excess packets are dropped and counted by the kernel at the
//! ring, before any work was done for them. `querier` handles IGMP and MLD, in a process of its own.

use std::io;
use std::num::NonZeroU64;

use pontoon_sandbox::{ResourceLimits, Sandbox};
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

/// Enters the sandbox, reports [`RelayReport::Ready`](messages::RelayReport::Ready), and runs until the supervisor closes
/// its end of `control`.
///
/// # Errors
/// The sandbox could not be entered, the supervisor has sent an invalid message, or a system call fails.
pub fn run(control: messages::WorkerChannel, sandbox: Sandbox, disabled: &Disabled) -> io::Result<()> {
    let _ = set_name(c"pontoon-relay");
    // If the supervisor has exited already, its end of the channel is closed, which ends the loop.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // With the default timer slack of 50 us a sleep of 100 us would take 150 us.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let worker = worker::RelayWorker::new(control)?;
    sandbox.limit(LIMITS, disabled)?;
    let layers = sandbox.enter(disabled)?;
    if layers.any_refused() {
        warn!("the sandbox is incomplete: {}", layers.missing());
    } else {
        debug!("sandbox: {layers}");
    }
    worker.run()
}

/// Resource limits of a worker, without rings and counters, whose memory is shared. A worker that forwards needs some MiB;
/// one that runs queriers needs about 20 MiB for each querier that has all memberships that hosts can report.
const LIMITS: ResourceLimits = ResourceLimits {
    memory: 2 << 30,
    threads: 8,
};
