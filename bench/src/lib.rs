//! `pontoon-bench`: compares user-mode network stacks on this machine, with one load generator for all.
//!
//! A *stack* (`stack`) is a way out of a namespace: the kernel's veth, pontoon with some flags, pasta. A *scenario*
//! (`scenario`) is one kind of measurement, such as the round trip of one byte; with its parameters it is a *cell*. The
//! *runner* (`run`) measures every cell of every stack once per round, in turn (A B C A B C), and writes a *sample*
//! ([`schema::Sample`]) after each. [`load`] contains the server and the client of all measurements. [`stats`] and
//! [`report`] summarise the samples and warn about figures that are not significant.
//!
//! Two studies have no stacks: `shm` measures the cost of a frame in shared memory, and `exits` counts how often a
//! guest leaves its virtual machine.

mod args;
mod commands;
mod exits;
mod host;
pub mod job;
mod library;
pub mod load;
mod machine;
mod network;
mod relay;
pub mod report;
mod run;
mod sandbox_ns;
mod scenario;
pub mod schema;
mod shm;
mod stack;
pub mod stats;
mod tap_guest;
mod usage;

pub use commands::main;
