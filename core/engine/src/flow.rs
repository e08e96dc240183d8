//! Identifiers of workers and flows, and the tokens by which sockets are registered for events.

/// A worker's number. A flow has the same owner until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u8);

/// The kind of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A TCP connection.
    Tcp = 0,
    /// A UDP guest endpoint.
    Udp = 1,
    /// An ICMP echo id.
    Icmp = 2,
    /// A pending DNS query of the forwarder.
    Dns = 3,
    /// A listening socket of a published port; the index is the host's place for it.
    Listener = 4,
    /// A descriptor of the worker (the link, the supervisor's channel), which is never passed to the engine.
    Edge = 5,
}

/// The id of a flow: its slot and the generation of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// The kind of flow.
    pub kind: Kind,
    /// The owner.
    pub worker: WorkerId,
    /// The slot.
    pub index: u32,
    /// The generation of the slot: an event for an earlier one is stale and ignored.
    pub generation: u16,
}

/// A [`FlowId`] as the 64 bits that epoll carries: kind, worker, generation, index.
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
    /// Returns the flow of this token; `None` for a kind that does not exist.
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
