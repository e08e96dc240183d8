//! Tests of the load generator over the loopback interface: results, detection of faults, and cleanup.
//!
//! Clients are processes (`pontoon-bench load-client`). A server is a process too, or, if it has a fault, a thread of
//! the test.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails its test")]

mod client;
mod faults;
mod jobs;
mod messages;
mod recovery;
