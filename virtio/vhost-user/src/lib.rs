//! The device side of vhost-user: a virtio-net device whose driver and guest memory are in another process.
//!
//! [`Backend`] communicates with the front-end. A [`Receiver`] and a [`Transmitter`] per queue pair move frames, each
//! pair in any thread. Payload is not copied: received frames, and room for frames to be sent, are slices of the
//! guest's memory. [`InProcessDevice`] replaces [`Backend`] for a VMM in the same process.
//!
//! # Threads
//!
//! The front-end changes rings while other threads serve them. A command is put into the ring's mailbox, and the ring's
//! thread executes it between two bursts. The next message of the front-end is read when all commands of the current
//! one were executed. No thread waits for another.
//!
//! # Hostile front-ends and guests
//!
//! `message.rs` parses bytes into types once; a malformed message ends the session. `memory.rs` maps only ranges that
//! are in the file, and `guard.rs` handles SIGBUS for files that are truncated later. A driver that violates the ring
//! protocol loses that ring until it is started again; other rings continue.
//!
//! # Features
//!
//! The device supports partial checksums and segmentation (TSO, USO) in both directions, mergeable buffers, event
//! indices, indirect descriptors, several queue pairs, the MTU, and a log of dirty pages. The front-end implements the
//! control queue. VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD is not needed: chains are returned in the order in which they
//! were taken, so that the used index in the ring is the only state.
//!
//! # Why not rust-vmm's `vhost`
//!
//! Its `BackendReqHandler` blocks in the middle of a message and requires each reply at once: half a message could
//! block its thread forever, and it would have to wait for the workers. This crate's tests use its front-end.
//! `vm-memory` holds the mappings.

#![warn(missing_docs)]

mod backend;
mod channel;
mod control_ring;
mod data_plane;
mod features;
mod guard;
mod in_process;
mod log;
mod mailbox;
mod memory;
mod message;
mod parts;
mod receive;
mod transmit;

pub use backend::{Backend, MAX_PAIRS, SessionEnd};
pub use in_process::{ActivateError, InProcessDevice, QueueConfig};
pub use receive::{BURST, Burst, MAX_PARTS, Receiver};
pub use transmit::{GuestReservation, Transmitter};
