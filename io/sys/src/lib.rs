//! Safe functions for kernel interfaces that need raw system calls, one file for each.
//!
//! Nothing here decides anything. Functions that are called for each packet return the bare [`Errno`](rustix::io::Errno);
//! functions for set-up return an `io::Error` with more text.

pub mod address;
pub mod batch;
pub mod bind;
pub mod caps;
pub mod cmsg;
pub mod disabled;
pub mod errqueue;
pub mod filter;
pub mod icmp;
pub mod inherited;
pub mod mapping;
pub mod message;
pub mod messages;
pub mod multicast;
pub mod option;
pub mod packet;
pub mod peer;
pub mod seqpacket;
pub mod shared;
pub mod tcp;
pub mod timed_write;
pub mod tun;
pub mod udp;
pub mod vhost;

pub use address::Family;

/// Returns the error behind a text that names what failed.
#[must_use]
pub fn context(what: &str, error: &std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Prints that a test was not run for a family. Written to the descriptor, as the test harness hides the output of passing
/// tests.
#[cfg(test)]
fn skipped(test: &str, family: Family) {
    use std::io::Write;
    let line = format!("SKIPPED: {test}: this machine has no {}\n", family.loopback());
    let _ = std::io::stderr().write_all(line.as_bytes());
}
