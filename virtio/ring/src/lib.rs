//! The split virtqueue (virtio 1.2, section 2.7), device side and driver side, in batches.
//!
//! The crate works on memory that another party may rewrite at any moment. It allocates nothing, makes no system calls
//! and does not need std. All unsafe code is in one file, that of [`memory::Raw`].
//!
//! - [`device`] is the device side: it takes chains of buffers from the driver and returns them as used. vhost-user and
//!   a VMM's own virtio-net device use it.
//! - [`driver`] is the driver side: it makes buffers available and reaps them. A vhost-net link and a guest use it.
//! - [`memory`] has the traits through which both sides access memory: behind a pointer, in rust-vmm's guest memory, in
//!   a model or in a model checker.
//! - [`pacing`] decides how a side waits for the other side: by sleeping, polling or both.
//!
//! # The peer is hostile
//!
//! Each word that the peer may write is read once, then validated, then used. A violation of the protocol is returned
//! as an error that names it, and the queue is unusable from then on. It never causes a panic, an access outside of
//! memory, or unbounded work: a chain has at most as many buffers as the queue has descriptors, and an index may not be
//! further ahead than that. Neither side reads back what it has written itself, because the other side may have
//! overwritten it.
//!
//! # Batches
//!
//! One load of the peer's index finds a whole batch, and one store of the own index publishes one; between them are
//! plain memory accesses. Publishing needs one full fence and one load of the peer's notification request. The order of
//! memory accesses, with the sections of the specification that require it, is in `rings.rs` (acquire and release on
//! indices) and `cursor.rs` (the fence). The tests in `tests/loom` run all interleavings of both sides that the memory
//! model allows.
//!
//! # Why not rust-vmm's `virtio-queue`
//!
//! Its device side ends a malformed chain without an error, allows an indirect chain of 65,535 buffers, always notifies
//! without VIRTIO_F_EVENT_IDX, and stores and publishes every used entry separately, each through a lookup of its
//! address: a chain through the queue and back costs 45 ns with it and 19 ns with this crate (batches of 64, `cargo run
//! --release -p pontoon-ring --example rate`). It has no driver side and needs std, so the guest library would need its
//! own code for the same queue. This crate's tests use it as the other side.
//!
//! # Example
//!
//! A driver sends a request, a device replies. Both are in one process here, and their memory is an array.
//!
//! ```
//! # #[cfg(feature = "std")] {
//! use pontoon_ring::device::{Device, State};
//! use pontoon_ring::driver::{Buffer, Driver, Slot};
//! use pontoon_ring::memory::{Area, Memory, Window};
//! use pontoon_ring::{Access, Features, Layout, Notification};
//!
//! #[repr(align(16))]
//! struct Page([u8; 4096]);
//! let mut shared = Page([0; 4096]);
//! let memory = Window::new(vm_memory::VolatileSlice::from(&mut shared.0[..]), 0x1_0000);
//! let layout = Layout::contiguous(8, 0x1_0000);
//! let features = Features { event_idx: true, indirect: false };
//!
//! // The driver creates the queue and publishes a chain of a request buffer and a reply buffer.
//! let mut driver = Driver::new(&memory, layout, features, [Slot::default(); 8])?;
//! let mut requests = driver.attach(&memory)?;
//! let (request, reply) = (0x1_0800, 0x1_0900);
//! memory.area(request, 4).unwrap().copy_in(0, b"ping");
//! requests.add(7, &[Buffer::readable(request, 4), Buffer::writable(reply, 64)])?;
//! assert_eq!(requests.publish(), Notification::Required, "the device has not suppressed notifications: notify it");
//!
//! // The device takes the chain and returns it as used.
//! let mut device = Device::new(layout, features, State::default())?;
//! let mut replies = device.attach(&memory)?;
//! replies.suppress();
//! assert_eq!(replies.poll()?, 1);
//! while let Some(chain) = replies.pop(|piece| match piece.access {
//!     Access::Readable => {
//!         let mut bytes = [0; 4];
//!         piece.area.copy_out(0, &mut bytes);
//!         assert_eq!(&bytes, b"ping");
//!     }
//!     Access::Writable => piece.area.copy_in(0, b"pong"),
//! })? {
//!     replies.put(chain, 4);
//! }
//! assert_eq!(replies.publish(), Notification::Required, "the driver has not suppressed notifications either");
//!
//! // Before it sleeps, it polls once more.
//! assert_eq!(replies.rearm()?, 0);
//!
//! // The driver takes back used chains, in any order.
//! assert_eq!(requests.poll()?, 1);
//! let used = requests.reap()?.unwrap();
//! assert_eq!((used.tag, used.len), (7, 4));
//! let mut bytes = [0; 4];
//! memory.area(reply, 4).unwrap().copy_out(0, &mut bytes);
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
mod index;
mod layout;
pub mod memory;
pub mod pacing;
mod rings;

pub use cursor::Notification;
pub use descriptor::Access;
pub use layout::{Features, Layout, LayoutError, Part};
