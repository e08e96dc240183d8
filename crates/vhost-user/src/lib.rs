//! The device side of vhost-user: a virtio-net device whose driver, and whose guest's memory, are in another process.
//!
//! An edge. [`Backend`] talks to the front-end; a [`Receiver`] and a [`Transmitter`] for each pair of queues move frames,
//! each pair in whatever thread. Payload is not copied: a frame that is received, and room for one to be sent, are slices
//! of the guest's memory.
//!
//! # Threads
//!
//! The front-end changes rings while others work on them. An order goes into the ring's mailbox, and is obeyed between
//! two bursts; the front-end's next message is read when all orders of this one have been obeyed. No thread waits for
//! another.
//!
//! # A hostile front-end, a hostile guest
//!
//! `message.rs` turns bytes into types once, at the door, and what is wrong ends the session. `memory.rs` maps only what
//! is in its file, and `guard.rs` handles SIGBUS for what is cut off later. What a driver does against the ring's protocol
//! gives its ring up, until it is set up anew; other rings go on.
//!
//! # Features
//!
//! Checksums and segmentation (TSO, USO) both ways, mergeable buffers, event indices, indirect descriptors, several pairs
//! of queues, the MTU, a log of dirty pages. The control queue is the front-end's. VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD is
//! not needed: chains are returned in the order they were taken, so that the used index in the ring says all.
//!
//! # Why not rust-vmm's `vhost`
//!
//! Its `BackendReqHandler` blocks in the middle of a message and has to have each answer at once: a thread of its own
//! could be held up for ever by half a message, and would have to wait for the workers, which here do not wait for each
//! other. Its front-end is the other side in this crate's tests. `vm-memory` holds the mappings.

#![warn(missing_docs)]

mod backend;
mod channel;
mod features;
mod guard;
mod half;
mod log;
mod mailbox;
mod memory;
mod message;
mod parts;
mod receive;
mod ring;
mod transmit;

pub use backend::{Backend, Ended, MAX_PAIRS};
pub use receive::{BURST, Burst, MAX_PARTS, Receiver};
pub use transmit::{Reservation, Transmitter};
