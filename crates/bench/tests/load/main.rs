//! The load over plain loopback: what it measures there, what it notices, and what it leaves behind.
//!
//! Clients are processes (`pontoon-bench load-client`); a server is one too, or a part of this process where it has a fault.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails its test")]

mod client;
mod faults;
mod jobs;
mod messages;
mod recovery;
