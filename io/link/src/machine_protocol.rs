//! Protocols by which a virtual machine or unikernel is attached to a Unix socket (`pontoon vm --protocol`).

use rustix::net::SocketType;

use crate::{Attachment, FrontEndSocket, Source};

/// A protocol of `pontoon vm`, spoken on a Unix socket.
#[derive(Clone, Copy, Debug)]
pub struct MachineProtocol {
    /// Value of `--protocol` on the command line.
    pub name: &'static str,
    /// Types of sockets that can carry the protocol. A listener that the supervisor creates has the first type.
    pub socket_types: &'static [SocketType],
    /// True if the link has a pair of queues for each worker; false if it supports a single worker only.
    pub multiqueue: bool,
    /// Function that returns the engine's end of a link over the socket, for a number of workers.
    pub attach: fn(Source, u8) -> Attachment,
}

/// All protocols of `pontoon vm`.
pub const MACHINE_PROTOCOLS: [MachineProtocol; 3] = [
    // Virtqueues in shared memory (QEMU documentation, "Vhost-user Protocol").
    MachineProtocol {
        name: "vhost-user",
        socket_types: &[SocketType::STREAM],
        multiqueue: true,
        attach: |source, workers| Attachment::VhostUser(FrontEndSocket { source, workers }),
    },
    // Each frame follows its length, 32 bits in network byte order.
    MachineProtocol {
        name: "stream",
        socket_types: &[SocketType::STREAM],
        multiqueue: false,
        attach: |source, _| Attachment::Stream(source),
    },
    // Each message is one frame.
    MachineProtocol {
        name: "packet",
        socket_types: &[SocketType::SEQPACKET, SocketType::DGRAM],
        multiqueue: false,
        attach: |source, _| Attachment::Packet(source),
    },
];
