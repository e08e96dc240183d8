//! A network interface in shared memory, for unikernels and sandboxed processes.
//!
//! [`Interface`] is the driver of a virtio-net device (virtio 1.2, section 5.1) with one queue pair and without
//! offloads: no segmentation, no partial checksums. Frames are queued and flushed. A flush notifies the device at most
//! once, and not at all while the device is polling. The device can be `pontoon vm --protocol vhost-user`, another
//! vhost-user device, or the device of a VMM behind virtio-mmio or PCI.
//!
//! An interface needs [`Memory`](pontoon_ring::memory::Memory) that is shared with the device, and a [`Platform`] that
//! notifies the device, sleeps and has a clock. It allocates no memory and does not need std. With the feature
//! `attach`, which is enabled by default, a process on Linux gets both from a vhost-user socket: see [`attach()`].
//!
//! # Waiting
//!
//! [`Interface::poll`] waits by one of three methods ([`Pacing`]). `Event` sleeps at once. `Poll` never sleeps, so that
//! the device never has to wake it: there are no notifications in either direction while both sides are busy. `Hybrid`
//! works as NAPI in Linux: it sleeps when there is nothing to do; when it is woken, it suppresses notifications and
//! polls for as long as recent waits were short; before it sleeps again, it requests a notification and, after a full
//! fence, polls once more.
//!
//! # Hostile devices
//!
//! A device that violates the virtqueue protocol, or claims to have written more bytes than a buffer has, causes an
//! [`Error`], after which the interface is unusable. Frames are copied out of shared memory before they are used.
//!
//! # Example
//!
//! An interface in memory of the program, with the interface and its device in one thread.
//!
//! ```
//! use core::ptr::NonNull;
//! use core::time::Duration;
//! use pontoon_guest::{DeviceGone, HEADER, Interface, Map, Pacing, Platform, Ring};
//! use pontoon_ring::Features;
//! use pontoon_ring::device::{Device, State};
//! use pontoon_ring::memory::{Area, Raw, Window};
//!
//! /// A machine without a doorbell, whose clock stands still.
//! struct Machine;
//!
//! impl Platform for Machine {
//!     fn now(&mut self) -> Duration {
//!         Duration::ZERO
//!     }
//!     fn notify(&mut self, _ring: Ring) {}
//!     fn sleep(&mut self, _until: Option<Duration>) -> Result<(), DeviceGone> {
//!         Ok(())
//!     }
//! }
//!
//! // 16 frames of up to 1,514 bytes each way, at the address 0x1000.
//! let map = Map::<16>::new(0x1000, 1514);
//! let mut memory = vec![0_u128; map.bytes().div_ceil(16)];
//! let base = NonNull::from(memory.as_mut_slice()).cast();
//! // SAFETY: the memory lives until the end of the example, and only the `Raw` accesses it.
//! let memory = Window::new(unsafe { Raw::new(base, map.bytes()) }, 0x1000);
//!
//! let features = Features { event_idx: true, indirect: false };
//! let mut interface = Interface::new(memory, map, features, Machine, Pacing::Hybrid)?;
//! let mut device = Device::new(map.transmit(), features, State::default())?;
//! interface.start();
//!
//! interface.queue(b"the first frame")?;
//! interface.queue(b"the second one")?;
//! interface.flush()?;
//! assert_eq!(interface.counters().doorbells, 2, "one by `start`, one for both frames");
//!
//! let mut ring = device.attach(memory)?;
//! assert_eq!(ring.poll()?, 2);
//! let mut frame = [0; 15];
//! ring.pop(|piece| piece.area.copy_out(HEADER, &mut frame))?;
//! assert_eq!(&frame, b"the first frame");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![warn(missing_docs)]

#[cfg(any(test, feature = "attach"))]
extern crate std;

#[cfg(feature = "attach")]
mod attach;
mod error;
mod interface;
mod map;
mod pacing;
#[cfg(feature = "smoltcp")]
mod phy;
mod platform;
mod receive;
mod transmit;

#[cfg(feature = "attach")]
pub use attach::{AttachError, Attached, Mapping, Options, Process, attach};
pub use error::{Error, QueueError};
pub use interface::{Counters, Interface, Ready};
pub use map::{HEADER, Map};
#[cfg(feature = "smoltcp")]
pub use phy::Phy;
pub use platform::{DeviceGone, Platform, Ring};
pub use pontoon_ring::pacing::Pacing;
