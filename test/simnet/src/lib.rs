//! The simulated network: a deterministic world in virtual time around the engine.
//!
//! The crate reads no clock, opens no socket and starts no thread. All random choices derive from one seed, so a
//! failing seed reproduces the failure.
//!
//! ```text
//!  guest            network                engine          host
//!  smol | scripted  Pipe + offload merge   Engine<SimHost> SimHost: sockets, and scripted peers behind them
//!  (SimApp)         Pipe + offload split   SimLink         (SimApp)
//! ```
//!
//! [`world::SimWorld`] advances the time from one event to the next. A run fails if a byte is wrong, a connection does
//! not end as the other side has ended it, the engine uses a closed socket, a loop does not end, or a flow or buffer
//! is not freed. [`scenario`] derives a whole world from a seed. [`transcript`] is for tests of single packets.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod app;
pub mod clock;
pub mod decider;
pub mod frames;
pub mod guest;
pub mod host;
pub mod link;
pub mod monitor;
pub mod net;
pub mod pattern;
pub mod peers;
pub mod rng;
pub mod scenario;
mod segment;
pub mod settings;
pub mod streams;
pub mod transcript;
pub mod turn;
pub mod world;
