//! Identifiers of workers and flows, and the tokens with which host sockets are registered for events.

/// Number of a worker of the engine, counted from 0. A flow belongs to the same worker until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u8);

/// Kinds of flows, and of other descriptors registered for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A TCP connection.
    Tcp = 0,
    /// A UDP endpoint of the guest.
    Udp = 1,
    /// An ICMP echo id of the guest.
    Icmp = 2,
    /// A pending DNS query of the forwarder.
    Dns = 3,
    /// The listening socket of a published port; `FlowId::index` is the index of the port in the configuration.
    Listener = 4,
    /// A descriptor of the worker's loop, such as the link or the supervisor's channel. Its events are not passed to
    /// the engine.
    Edge = 5,
    /// A TCP connection between programs of this host and of the guest that does not use the link; also its client's socket.
    Joined = 6,
    /// The socket of such a connection that is connected to the server. The flow has [`Self::Joined`].
    JoinedServer = 7,
}

/// Identifier of a flow: its worker, the slot in that worker's table, and the slot's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// Kind of the flow, which selects the table of its slot.
    pub kind: Kind,
    /// Worker that owns the flow.
    pub worker: WorkerId,
    /// Index of the flow's slot in the table of its kind.
    pub index: u32,
    /// Generation of the slot, which changes when the slot is reused. An event with an earlier generation is ignored.
    pub generation: u16,
}

/// A [`FlowId`] encoded as the 64 bits of user data in an epoll event: kind, worker, generation, index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

impl From<FlowId> for Token {
    fn from(id: FlowId) -> Self {
        Self(
            u64::from(id.kind as u8) << 56
                | u64::from(id.worker.0) << 48
                | u64::from(id.generation) << 32
                | u64::from(id.index),
        )
    }
}

impl Token {
    /// Returns the flow id that this token encodes; `None` if the kind does not exist.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes the token's fields apart")]
    pub fn flow(self) -> Option<FlowId> {
        let kind = match (self.0 >> 56) as u8 {
            0 => Kind::Tcp,
            1 => Kind::Udp,
            2 => Kind::Icmp,
            3 => Kind::Dns,
            4 => Kind::Listener,
            5 => Kind::Edge,
            6 => Kind::Joined,
            7 => Kind::JoinedServer,
            _ => return None,
        };
        Some(FlowId {
            kind,
            worker: WorkerId((self.0 >> 48) as u8),
            generation: (self.0 >> 32) as u16,
            index: self.0 as u32,
        })
    }
}
