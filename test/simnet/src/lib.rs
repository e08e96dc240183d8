//! The simulated network: a deterministic world in virtual time around the engine.
//!
//! Pure: no clock, no sockets, no threads. One seed decides everything that is left to chance, so a failing seed is a
//! complete description of the failure.
//!
//! ```text
//!  guest            network                engine          host
//!  smol | scripted  Pipe + offload merge   Engine<SimHost> SimHost: sockets, and scripted peers behind them
//!  (App)            Pipe + offload split   SimLink         (App)
//! ```
//!
//! [`world::World`] moves time from one thing that happens to the next and fails on anything that should not be: a wrong
//! byte, an ending that is not what the other side did, a socket used after it was closed, a loop that does not end, a
//! flow or buffer left over. [`scenario`] derives a whole world from a seed. [`transcript`] is for tests of single
//! packets.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod app;
pub mod clock;
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
pub mod world;
