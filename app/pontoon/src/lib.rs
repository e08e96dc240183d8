//! User-mode networking as a library: a guest gets a complete network of its own, without privileges.
//!
//! The guest, for example a virtual machine, a unikernel or a network namespace, sends Ethernet frames. On the host, its
//! connections are sockets of the program.
//!
//! # No sandbox
//!
//! **The library runs in the program's process, and has the program's privileges.** The processes of the command `pontoon` are
//! sandboxed: an attacker who gains control of the code that processes packets has neither files nor other processes there. In a
//! program that uses this library, the attacker has what the program has. The guest is considered hostile from its first byte
//! (`ARCHITECTURE.md` has the threat model), and the code that reads its frames and memory is in Rust and fuzzed; but a program
//! that can choose starts the command instead, or drops its privileges itself before it starts a network. Beside that:
//!
//! - An engine that fails is not restarted. The network ends with an error; a panic about one packet ends one flow.
//! - The library does not raise the limit on descriptors, of which each flow has one.
//! - The host's own addresses, which the guest may not reach, and its resolvers are followed, as by the command. A network ends
//!   with an error if the kernel does not report them any more.
//!
//! # Guests
//!
//! | guest | function |
//! |---|---|
//! | behind a Unix socket: a stream, or a message for each frame | [`Guest::stream`], [`Guest::packet`] |
//! | a virtual machine with vhost-user | [`Guest::vhost_user`] |
//! | a network namespace | [`Guest::tap`] |
//! | a virtual machine of this program, by a virtio-net device | [`NetworkBuilder::device`] |
//! | frames by function calls | [`NetworkBuilder::frames`] |
//!
//! The guest gets its addresses by DHCP, DHCPv6 and router advertisements, or has those of [`Network::addresses`] configured.
//!
//! # Example
//!
//! A guest with a packet socket, which sends an ARP request for its gateway and receives the reply. The guest may reach HTTPS
//! servers of one domain only, and the program prints a record of each flow.
//!
//! ```
//! use std::os::fd::OwnedFd;
//! use std::time::Duration;
//!
//! use pontoon::{Guest, Network};
//! use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
//!
//! let (guest, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
//! let mut network = Network::builder()
//!     .allow("*.example.org:443/tcp")?
//!     .on_event(|event| println!("{}", event.json))
//!     .attach(Guest::packet(ours)?)?;
//! let own = network.addresses().ipv4.expect("IPv4 is on by default");
//!
//! let mut request = vec![0xff; 6];
//! request.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1]);
//! request.extend(own.guest.octets());
//! request.extend([0; 6]);
//! request.extend(own.gateway.octets());
//! send(&guest, &request, SendFlags::empty())?;
//! let mut reply = [0; 2048];
//! loop {
//!     let (len, _) = recv(&guest, &mut reply[..], RecvFlags::empty())?;
//!     if reply[12..14] == [8, 6] && len >= 42 {
//!         break;
//!     }
//! }
//! assert_eq!(reply[28..32], own.gateway.octets());
//! network.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`threads`] describes the threads of a network, functions of the program, and networks without a thread. [`NetDevice`] is
//! used by the virtual machine in `examples/microvm`.
//!
//! # Stability
//!
//! The versions of this crate follow semantic versioning. [`GuestMemoryMmap`] is a type of the crate `vm-memory`, which is
//! re-exported as [`vm_memory`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod builder;
mod decision;
mod device;
mod error;
mod event;
mod events;
mod frames;
mod guest;
mod host;
mod network;
mod pacing;
mod queue;
mod service;
mod stats;
pub mod threads;

pub use address::{Addresses, LinkAddresses};
pub use builder::NetworkBuilder;
pub use decision::{DECISION_DEADLINE, DecisionToken, Denial, FlowRequest, Protocol, SLOW_DECISION, Verdict};
pub use device::NetDevice;
pub use error::{Error, ErrorKind};
pub use event::{Event, EventKind};
pub use frames::FramePort;
pub use guest::Guest;
pub use network::{Network, VerdictSender};
pub use pacing::Pacing;
pub use pontoon_vhost_user::{ActivateError, QueueConfig};
pub use queue::{EventQueue, RequestQueue};
pub use service::{LinkService, UdpFilter};
pub use stats::{HistogramValues, Stats};
pub use vm_memory;
pub use vm_memory::GuestMemoryMmap;
