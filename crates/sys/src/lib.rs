//! Edge: kernel interfaces that need raw system calls, behind safe functions.
//!
//! One kernel interface is one file. Nothing here decides anything; callers do. What is called per packet answers
//! with the bare [`Errno`](rustix::io::Errno); what is called at set-up answers with an `io::Error` that says more.

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
mod option;
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

/// Says past the test harness, which keeps what passing tests print to itself, that a test was not run for a family.
#[cfg(test)]
fn skipped(test: &str, family: Family) {
    use std::io::Write;
    let line = format!("SKIPPED: {test}: this machine has no {}\n", family.loopback());
    let _ = std::io::stderr().write_all(line.as_bytes());
}
