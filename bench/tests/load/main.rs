//! The load over plain loopback: results, detection of faults, and cleanup.
//!
//! Clients are processes (`pontoon-bench load-client`); a server is one too, or a part of this process if it has a
//! fault.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails its test")]

mod client;
mod faults;
mod jobs;
mod messages;
mod recovery;
