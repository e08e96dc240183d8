//! `pontoon bench`: user-mode network stacks side by side, on this machine, with one load generator.
//!
//! A *stack* ([`stack`]) is a way out of a namespace: the kernel's veth, pontoon with some flags, pasta. A *scenario*
//! ([`scenario`]) is one question, say the round trip of one byte; with its parameters it is a *cell*. The *runner*
//! ([`run`]) asks every stack every cell's question once per round, in turn (A B C A B C), and writes a *sample*
//! ([`schema::Sample`]) after each. [`load`] is the one server and the one client program behind every figure.
//! [`shm`] asks another question, of guests that have no kernel to ask: what a frame costs in shared memory; and
//! [`exits`], how often a virtual machine is left for one.
//! [`stats`] and [`report`] say what the samples mean, in words where they mean nothing.

mod args;
mod commands;
mod exits;
mod host;
pub mod job;
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
