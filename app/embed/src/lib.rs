//! Pontoon inside a VMM: user-mode networking as a library.
//!
//! [`Network::start`] runs the engine in a thread of its own, and gives the VMM a virtio-net [`Device`]. What the VMM keeps
//! is the device's registers, be it behind MMIO or PCI: once the guest's driver has said where its queues are, the VMM hands
//! them over, with the guest's memory and two eventfds for each. A *kick* is the driver's doorbell, to be an ioeventfd; a
//! *call* interrupts the guest, to be an irqfd. From then on no frame passes through the VMM.
//!
//! The engine takes and leaves frames in the guest's memory. Checksums, TSO and USO both ways, mergeable receive buffers,
//! event indices and indirect descriptors are the driver's to accept. There is one pair of queues, and no control queue.
//!
//! [`Network::attach`] is for a guest without a device of ours: behind a socket, as `pontoon vm` has it.
//!
//! # Safety of the host
//!
//! The guest is hostile to the engine from its first byte: see the threat model in `ARCHITECTURE.md`. But `pontoon`'s
//! own processes are also locked in, while a thread has all that its process has. Nothing here drops privileges or changes
//! limits; a VMM does that for itself, after [`Network::start`] or before. Each flow takes a descriptor:
//! [`Config::max_flows`](pontoon_engine::Config) is to leave enough of them.
//!
//! There is one signal handler, and only with [`Attachment::VhostUser`]: for SIGBUS, as files of a guest's memory may be cut
//! off. What is not about such a file goes to the handler that there was before. A VMM that installs its own afterwards has
//! to pass on to this one, which stays installed when the network has stopped.
//!
//! The host's own addresses are refused to the guest as far as they are known: tell them by [`Options::owned`], and, as they
//! change, by [`Network::set_owned`].
//!
//! # Example
//!
//! A VMM's part, with a driver in the same process for a guest: it asks who has the gateway's address, and is answered.
//!
//! ```
//! use std::time::Duration;
//!
//! use pontoon_embed::{Network, Options, QueueConfig};
//! use pontoon_guest::{Interface, Map, Pacing, Platform, Process};
//! use pontoon_ring::memory::VmMemory;
//! use pontoon_ring::{Features, Layout};
//! use rustix::event::{EventfdFlags, eventfd};
//! use vm_memory::{GuestAddress, GuestMemoryMmap};
//!
//! let (network, mut device) = Network::start(Options::default())?;
//!
//! // The guest's memory, and in it the queues that its driver made. In a VMM all of this is the guest's to do, but for
//! // the eventfds, which the VMM registers with KVM.
//! let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 4 << 20)])?;
//! let map = Map::<256>::new(0x1_0000, 1514);
//! let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
//! let (connection, _open) = std::io::pipe()?;
//! let process = Process {
//!     kicks: [event()?, event()?],
//!     calls: [event()?, event()?],
//!     connection: connection.into(),
//! };
//! let queue = |number: usize, layout: Layout| std::io::Result::Ok(QueueConfig {
//!     size: layout.size,
//!     descriptors: layout.descriptors,
//!     available: layout.available,
//!     used: layout.used,
//!     kick: process.kicks[number].try_clone()?,
//!     call: process.calls[number].try_clone()?,
//! });
//! let queues = [queue(0, map.receive())?, queue(1, map.transmit())?];
//! let features = Features { event_idx: true, indirect: false };
//! let guest_memory = VmMemory::new(&memory);
//! let mut guest = Interface::new(guest_memory, map, features, process, Pacing::Event)?;
//!
//! // The driver has set DRIVER_OK, after it had accepted VIRTIO_F_VERSION_1 and VIRTIO_F_EVENT_IDX.
//! device.activate(&memory, 1 << 32 | 1 << 29, queues)?;
//! guest.start();
//!
//! // Who has 10.0.2.2? Tell 10.0.2.15.
//! let mut question = [0; 42];
//! question[..6].fill(0xff);
//! question[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
//! question[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
//! question[22..28].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
//! question[28..32].copy_from_slice(&[10, 0, 2, 15]);
//! question[38..42].copy_from_slice(&[10, 0, 2, 2]);
//! guest.write(&question)?;
//! let deadline = guest.platform().now() + Duration::from_secs(10);
//! assert!(guest.poll(Some(deadline))?.frame);
//! let mut answer = [0; 1514];
//! guest.read(&mut answer)?;
//! assert_eq!(answer[20..22], [0, 2], "an ARP reply");
//! assert_eq!(answer[28..32], [10, 0, 2, 2]);
//!
//! // The guest is reset, and stops.
//! device.reset();
//! network.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

mod network;
mod options;

pub use network::{Device, Network};
pub use options::Options;
pub use pontoon_engine as engine;
pub use pontoon_runtime::messages::Stats;
pub use pontoon_runtime::{Attachment, Outbound, Pacing, Source};
pub use pontoon_vhost_user::{ActivateError, QueueConfig};
