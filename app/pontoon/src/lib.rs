//! Pontoon inside a VMM: user-mode networking as a library.
//!
//! [`Network::start`] runs the engine in a thread of its own, and returns a virtio-net [`NetDevice`] for the VMM. The VMM
//! implements the device's registers, behind MMIO or PCI. When the guest's driver has set the addresses of its queues, the
//! VMM passes the queues to [`NetDevice::activate`], with the guest's memory and two eventfds for each queue: the *kick*,
//! an ioeventfd by which the driver notifies the device, and the *call*, an irqfd by which the device interrupts the guest.
//! From then on no frame passes through the VMM.
//!
//! The engine reads and writes frames in the guest's memory. It offers checksums, TSO and USO both ways, mergeable receive
//! buffers, event indices and indirect descriptors. There is one pair of queues, and no control queue.
//!
//! [`Network::attach`] is for a guest behind a socket, as with `pontoon vm`.
//!
//! # Safety of the host
//!
//! The guest is hostile to the engine from its first byte: see the threat model in `ARCHITECTURE.md`. `pontoon`'s
//! own processes are sandboxed as well, while a thread has the privileges of its process. This library neither drops privileges
//! nor changes limits; a VMM does so itself, before or after [`Network::start`]. Each flow uses a descriptor:
//! [`Config::max_flows`](pontoon_engine::Config) must leave enough of them.
//!
//! There is one signal handler, and only with [`Attachment::VhostUser`]: for SIGBUS, as files of a guest's memory may be
//! truncated. Signals for other addresses are passed to the earlier handler. A VMM that installs its own handler afterwards has
//! to call this one, which stays installed when the network has stopped.
//!
//! The host's own addresses are refused to the guest as far as they are known: set them in
//! [`NetworkOptions::owned`], and pass changes to [`Network::set_owned`].
//!
//! # Example
//!
//! The VMM's part, with a driver in the same process as guest, which sends an ARP request for the gateway's address and receives
//! the reply.
//!
//! ```
//! use std::time::Duration;
//!
//! use pontoon::{Network, NetworkOptions, QueueConfig};
//! use pontoon_guest::{Interface, Map, Pacing, Platform, Process};
//! use pontoon_ring::memory::VmMemory;
//! use pontoon_ring::{Features, Layout};
//! use rustix::event::{EventfdFlags, eventfd};
//! use vm_memory::{GuestAddress, GuestMemoryMmap};
//!
//! let (network, mut device) = Network::start(NetworkOptions::default())?;
//!
//! // The guest's memory, and the queues of its driver in it. In a VMM, the guest does all of this, except for the eventfds,
//! // which the VMM registers with KVM.
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
//! // An ARP request of 10.0.2.15 for 10.0.2.2.
//! let mut request = [0; 42];
//! request[..6].fill(0xff);
//! request[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
//! request[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
//! request[22..28].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
//! request[28..32].copy_from_slice(&[10, 0, 2, 15]);
//! request[38..42].copy_from_slice(&[10, 0, 2, 2]);
//! guest.write(&request)?;
//! let deadline = guest.platform().now() + Duration::from_secs(10);
//! assert!(guest.poll(Some(deadline))?.frame);
//! let mut reply = [0; 1514];
//! guest.read(&mut reply)?;
//! assert_eq!(reply[20..22], [0, 2], "an ARP reply");
//! assert_eq!(reply[28..32], [10, 0, 2, 2]);
//!
//! // The guest resets the device.
//! device.reset();
//! network.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Decisions and events
//!
//! A decider of the VMM allows, denies or redirects each new flow that the configuration allows; see
//! [`FlowDecider::new`]. A function of the VMM receives a numbered record of each event of a flow, as a value and
//! as the line of JSON that `docs/events.md` describes; see [`FlowEventCallback::new`]. Neither delays a
//! packet: a decider answers at once or later, and records wait in memory of limited size until the function has returned.
//!
//! ```
//! use std::sync::mpsc;
//!
//! use pontoon::engine::decider::{Answer, DEADLINE, Decider, Denial, FlowRequest, Verdict};
//! use pontoon::{Network, NetworkOptions};
//!
//! /// Denies mail.
//! #[derive(Clone, Debug)]
//! struct NoMail;
//!
//! impl Decider for NoMail {
//!     fn decide(&mut self, request: &FlowRequest) -> Answer {
//!         Answer::Now(match request.remote.port() {
//!             25 => Verdict::Deny(Denial::Reset),
//!             _ => Verdict::Allow,
//!         })
//!     }
//! }
//!
//! let (lines, received) = mpsc::channel();
//! let options = NetworkOptions::default()
//!     .with_decider(NoMail, DEADLINE)
//!     .with_events(move |record| drop(lines.send(record.line.to_owned())));
//! let (network, _device) = Network::start(options)?;
//! network.stop()?;
//! let lines: Vec<String> = received.iter().collect();
//! assert!(lines[0].contains(r#""n":1,"#) && lines[0].contains(r#""type":"start""#));
//! assert!(lines[1].contains(r#""n":2,"#) && lines[1].contains(r#""type":"end""#));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

mod decider;
mod events;
mod network;
mod options;

pub use decider::FlowDecider;
pub use events::FlowEventCallback;
pub use network::{NetDevice, Network, Stats};
pub use options::NetworkOptions;
pub use pontoon_engine as engine;
pub use pontoon_vhost_user::{ActivateError, QueueConfig};
pub use pontoon_worker::events::recorder::Record;
pub use pontoon_worker::stats::Distribution;
pub use pontoon_worker::{Attachment, FrontEndSocket, Outbound, Pacing, Source};
