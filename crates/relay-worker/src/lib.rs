//! Edge: a process that moves a relay's datagrams, and nothing else.
//!
//! It opens nothing: rings and sockets come from the supervisor, with the rules, as [`messages`]; it gives up every
//! capability before it reads the first. What it counts lies in memory that outlives it.
//!
//! [`worker`] is the loop. It waits for something to arrive, lets more arrive for as long as it may (`--max-delay`),
//! and then takes a batch from each [`input`]: every packet is parsed and matched where it lies in the ring, put with
//! others of its kind ([`pontoon_relay::Gather`]), and each burst is one send for each output ([`sender`]) whose slices
//! point into the ring. Then the slots go back to the kernel. There is no other queue: what is too much is dropped by
//! the kernel at the ring, before any work was done for it, and counted there.

use std::io;
use std::os::fd::OwnedFd;

use pontoon_sys::caps;
use rustix::process::{Signal, geteuid, getppid, set_parent_process_death_signal};
use rustix::thread::{
    set_current_timer_slack, set_name, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

mod counters;
mod input;
pub mod messages;
mod sandbox;
mod sender;
mod work;
mod worker;

pub use counters::Counters;

/// Moves datagrams until the supervisor, which is at the other end of `control`, goes away.
///
/// # Errors
/// A privilege could not be given up; the kernel's.
pub fn run(control: OwnedFd) -> io::Result<()> {
    let parent = getppid();
    let _ = set_name(c"pontoon-relay");
    caps::drop_bounding()?;
    become_nobody();
    caps::drop_all()?;
    // Changing ids takes this away, so it is asked for afterwards. A supervisor that was dead by then has closed its end.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != parent {
        return Ok(());
    }
    // A sleep of 100 us would otherwise take 150.
    let _ = set_current_timer_slack(std::num::NonZeroU64::new(1));
    let worker = worker::Worker::new(control)?;
    sandbox::enter()?;
    worker.run()
}

/// As root without capabilities, files of root's could still be written.
fn become_nobody() {
    if !geteuid().is_root() {
        return;
    }
    let (user, group) = (
        rustix::process::Uid::from_raw(NOBODY),
        rustix::process::Gid::from_raw(NOBODY),
    );
    let changed = set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(group, group, group))
        .and_then(|()| set_thread_res_uid(user, user, user));
    if let Err(error) = changed {
        // In a user namespace that maps one id.
        tracing::debug!(%error, "the worker keeps its user");
    }
}

/// The overflow id, which owns nothing.
const NOBODY: u32 = 65534;
