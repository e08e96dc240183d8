//! The split virtqueue (virtio 1.2, section 2.7): both of its sides, in batches.
//!
//! An edge: it works on memory that somebody else may rewrite at any moment. It allocates nothing, makes no system call
//! and needs no std. Unsafe code is in one file, [`memory::Raw`]'s.
//!
//! - [`device`] serves a queue: takes chains of buffers from the driver, returns them used. What vhost-user and a VMM's
//!   own virtio-net device stand on.
//! - [`driver`] owns a queue: offers buffers, takes them back. What a vhost-net link and a guest stand on.
//! - [`memory`] is how both see memory: behind a pointer, in rust-vmm's guest memory, in a model or a model checker.
//! - [`pacing`] is how either waits for the other.
//!
//! # The peer is hostile
//!
//! Each word that the peer may write is read once, then checked, then used. What a peer does against the protocol comes
//! back as an error that says what it was, and the queue is broken from then on; it never leads to a panic, to an access
//! outside memory, or to work that does not end: a chain has at most as many buffers as the queue has descriptors, and
//! an index may be no further ahead than that. Neither side reads back what it wrote itself, since the other may have
//! written over it.
//!
//! # In batches
//!
//! One load of the peer's index finds a whole batch, and one store of our own shows one; between them is plain memory.
//! Showing it takes one full fence, and one look at whether the peer wants to be notified. The order of memory accesses,
//! with the sections that ask for it, is in `half.rs` (acquire and release on indices) and `cursor.rs` (the fence); the
//! tests in `tests/loom` run all interleavings of both sides, as the memory model lets them see each other.
//!
//! # Why not rust-vmm's `virtio-queue`
//!
//! Its device side ends a malformed chain without an error, allows an indirect chain of 65,535 buffers, notifies always
//! without VIRTIO_F_EVENT_IDX, and stores and shows every used entry by itself, each through a lookup of its address: a
//! chain through the queue, there and back, costs 45 ns with it and 19 ns with this crate (batches of 64, `cargo run
//! --release -p pontoon-ring --example rate`). It has no driver side and needs std, so that the guest library would need
//! code of its own for the same queue all the same. It serves as the other side in this crate's tests.
//!
//! # Example
//!
//! A driver asks, a device answers. Here both are in one process, and their memory is an array.
//!
//! ```
//! # #[cfg(feature = "std")] {
//! use pontoon_ring::device::{Device, State};
//! use pontoon_ring::driver::{Buffer, Driver, Slot};
//! use pontoon_ring::memory::{Area, Memory, Window};
//! use pontoon_ring::{Access, Features, Layout};
//!
//! #[repr(align(16))]
//! struct Shared([u8; 4096]);
//! let mut shared = Shared([0; 4096]);
//! let memory = Window::new(vm_memory::VolatileSlice::from(&mut shared.0[..]), 0x1_0000);
//! let layout = Layout::contiguous(8, 0x1_0000);
//! let features = Features { event_idx: true, indirect: false };
//!
//! // The driver makes the queue, offers a buffer with a question and one for the answer, and shows them.
//! let mut driver = Driver::new(&memory, layout, features, [Slot::default(); 8])?;
//! let mut asks = driver.attach(&memory)?;
//! let (question, answer) = (0x1_0800, 0x1_0900);
//! memory.area(question, 4).unwrap().copy_in(0, b"ping");
//! asks.add(7, &[Buffer::readable(question, 4), Buffer::writable(answer, 64)])?;
//! assert!(asks.publish(), "the device has not said that it is awake: notify it");
//!
//! // The device takes what waits, and returns it.
//! let mut device = Device::new(layout, features, State::default())?;
//! let mut serves = device.attach(&memory)?;
//! serves.suppress();
//! assert_eq!(serves.poll()?, 1);
//! while let Some(chain) = serves.pop(|piece| match piece.access {
//!     Access::Readable => {
//!         let mut bytes = [0; 4];
//!         piece.area.copy_out(0, &mut bytes);
//!         assert_eq!(&bytes, b"ping");
//!     }
//!     Access::Writable => piece.area.copy_in(0, b"pong"),
//! })? {
//!     serves.put(chain, 4);
//! }
//! assert!(serves.publish(), "so is the driver");
//!
//! // Before it sleeps it looks once more.
//! assert_eq!(serves.rearm()?, 0);
//!
//! // The driver takes back what was used, in whatever order.
//! assert_eq!(asks.poll()?, 1);
//! let used = asks.reap()?.unwrap();
//! assert_eq!((used.tag, used.len), (7, 4));
//! let mut bytes = [0; 4];
//! memory.area(answer, 4).unwrap().copy_out(0, &mut bytes);
//! assert_eq!(&bytes, b"pong");
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![warn(missing_docs)]

#[cfg(test)]
extern crate std;

mod cursor;
mod descriptor;
pub mod device;
pub mod driver;
mod half;
mod index;
mod layout;
pub mod memory;
pub mod pacing;

pub use descriptor::Access;
pub use layout::{Features, Layout, LayoutError, Part};
