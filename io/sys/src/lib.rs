//! Safe functions for kernel interfaces that need raw system calls, one file for each.
//!
//! The functions contain no policy: their callers decide. Functions that are called for each packet return the bare
//! [`Errno`](rustix::io::Errno); functions that set something up return an `io::Error` whose text names the step.

pub mod address;
pub mod batch;
pub mod bind;
pub mod caps;
pub mod cmsg;
pub mod disabled;
pub mod epoll;
pub mod errqueue;
pub mod filter;
mod header;
pub mod icmp;
pub mod inherited;
pub mod mapping;
pub mod message;
pub mod messages;
pub mod multicast;
pub mod netns;
pub mod option;
pub mod packet;
pub mod peer;
pub mod seqpacket;
pub mod shared;
pub mod tcp;
pub mod timed_write;
pub mod timer;
pub mod tun;
pub mod udp;
pub mod vhost;

pub use address::Family;

/// Returns `error` with `what` in front of its text: the operation that failed.
#[must_use]
pub fn context(what: &str, error: &std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Prints that a test was skipped for an address family. The line is written to the descriptor, as the test harness
/// hides the output of tests that pass.
#[cfg(test)]
fn skipped(test: &str, family: Family) {
    use std::io::Write;
    let line = format!("SKIPPED: {test}: this machine has no {}\n", family.loopback());
    let _ = std::io::stderr().write_all(line.as_bytes());
}
