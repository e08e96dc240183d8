//! The table of protocols by which a virtual machine or unikernel is attached to a Unix socket (`pontoon vm --protocol`).

use rustix::net::SocketType;

use crate::{Attachment, FrontEndSocket, Source};

/// A protocol of a machine's socket.
#[derive(Clone, Copy, Debug)]
pub struct MachineProtocol {
    /// Value of `--protocol`.
    pub name: &'static str,
    /// Types of sockets that carry the protocol. A new listener has the first one.
    pub socket_types: &'static [SocketType],
    /// The link has one queue for each worker, rather than one for a single worker.
    pub multiqueue: bool,
    /// Returns the engine's end of a link on the socket, for this number of workers.
    pub attach: fn(Source, u8) -> Attachment,
}

/// All protocols of machines' sockets.
pub const MACHINE_PROTOCOLS: [MachineProtocol; 3] = [
    // Virtqueues in shared memory (QEMU, "Vhost-user Protocol").
    MachineProtocol {
        name: "vhost-user",
        socket_types: &[SocketType::STREAM],
        multiqueue: true,
        attach: |source, workers| Attachment::VhostUser(FrontEndSocket { source, workers }),
    },
    // Each frame is preceded by its length, 32 bits in network byte order.
    MachineProtocol {
        name: "stream",
        socket_types: &[SocketType::STREAM],
        multiqueue: false,
        attach: |source, _| Attachment::Stream(source),
    },
    // One frame per message.
    MachineProtocol {
        name: "packet",
        socket_types: &[SocketType::SEQPACKET, SocketType::DGRAM],
        multiqueue: false,
        attach: |source, _| Attachment::Packet(source),
    },
];
