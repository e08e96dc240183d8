//! What well-behaved stacks never do, or seldom.

/// How often the scripted guest does each of these. Chances are per mille, of each time that it may.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mischief {
    /// Two segments leave in the wrong order.
    pub swap: u32,
    /// A retransmission overlaps what was sent before, at other boundaries.
    pub overlap: u32,
    /// Data that was acknowledged long ago is sent again.
    pub stale: u32,
    /// Segments carry URG and a pointer.
    pub urgent: u32,
    /// A keepalive probe, with or without a byte of rubbish.
    pub keepalive: u32,
    /// A RST in the window but not at its left edge (RFC 5961 section 3: answered, not obeyed).
    pub inexact_reset: u32,
    /// A RST outside of the window.
    pub far_reset: u32,
    /// A SYN on the open connection (RFC 5961 section 4).
    pub syn: u32,
    /// An acknowledgement of data that was never sent (RFC 5961 section 5).
    pub wild_ack: u32,
    /// Data beyond the window.
    pub beyond: u32,
    /// Data is acknowledged by SACK, then dropped (RFC 2018 section 8 allows it).
    pub renege: u32,
}

impl Mischief {
    /// All of it.
    pub const ALL: Self = Self {
        swap: 50,
        overlap: 300,
        stale: 20,
        urgent: 30,
        keepalive: 20,
        inexact_reset: 50,
        far_reset: 10,
        syn: 10,
        wild_ack: 10,
        beyond: 20,
        renege: 10,
    };
}
