//! The translation engine between the frames of one guest and sockets of the host.
//!
//! The crate reads no clock, opens no socket, starts no thread, and has no source of randomness but a seed. Time is the
//! argument `now`; sockets and the link are behind the traits [`Host`] and [`Transmit`], whose calls do not block.
#![forbid(unsafe_code)]
#![deny(clippy::iter_over_hash_type)]
#![warn(missing_docs)]

pub mod address_plan;
pub mod bandwidth;
pub mod config;
pub mod counters;
pub mod ctx;
pub mod decider;
pub mod dns;
pub mod egress;
mod egress_check;
pub mod engine;
pub mod flow;
pub mod flow_dump;
pub mod flow_events;
pub mod flow_rate;
pub mod fragment;
pub mod histogram;
pub mod host;
pub mod icmp;
mod icmp_errors;
pub mod ledger;
pub mod link;
pub mod local;
mod path_mtu;
pub mod policy;
pub mod pool;
pub mod proxy;
pub mod siblings;
pub mod slab;
pub mod state;
mod table;
pub mod tcp;
#[cfg(test)]
mod test_world;
pub mod time;
pub mod timer;
pub mod udp;
pub mod udp_emit;

pub use bandwidth::Bandwidth;
pub use config::Config;
pub use counters::Counters;
pub use egress::Egress;
pub use engine::Engine;
pub use flow::{FlowId, Kind, Token, WorkerId};
pub use flow_events::{FlowEvent, FlowEvents};
pub use histogram::{Histogram, Histograms};
pub use host::{Failure, Host, Readiness};
pub use ledger::Ledger;
pub use link::{Frame, Limits, Transmit};
pub use siblings::Siblings;
pub use time::Instant;
