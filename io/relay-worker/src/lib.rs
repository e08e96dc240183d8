//! Sandboxed worker process of `pontoon relay`: forwards datagrams, or runs the IGMP/MLD queriers of `--proxy`.
//!
//! The worker opens no socket: the supervisor sends rings, sockets and rules to it as [`messages`]. It enters the sandbox
//! before it receives the first message. Its counters are in shared memory that outlives the process.
//!
//! The loop is in `worker`. It waits for a packet, sleeps for the batch delay (`--max-delay`) to receive more, and then
//! takes a batch from each `input`. Each packet is parsed and its rule looked up without a copy out of the ring, and the
//! packet is added to a burst ([`pontoon_relay::BurstGather`]). Each burst is sent by one system call for each output
//! (`sender`), whose slices point into the ring. Then the slots are returned to the kernel. There is no other queue: under
//! overload the kernel drops and counts packets at the ring, before any processing. `querier` handles IGMP and MLD, in a
//! worker process of its own.

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
