//! Lists the flows of a worker for the control socket.
//!
//! A list is made in pages, so that packets wait only for one page.

use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;
use core::time::Duration;

use crate::FlowId;
use crate::egress::EgressProtocol;

/// The present state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Its id.
    pub id: FlowId,
    /// The protocol.
    pub protocol: EgressProtocol,
    /// The guest's address; for an echo request the port is its id.
    pub guest: SocketAddr,
    /// The remote address as the guest sees it, one of several for a UDP endpoint; `None` before the first.
    pub remote: Option<SocketAddr>,
    /// It was opened by a client of a published port.
    pub came_in: bool,
    /// The phase.
    pub phase: Phase,
    /// Since it began.
    pub age: Duration,
    /// Bytes carried.
    pub traffic: Traffic,
}

/// Bytes of data that a flow has carried, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the guest.
    pub up: u64,
    /// To the guest.
    pub down: u64,
}

/// The phase of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// TCP: the host connection is pending.
    Connecting,
    /// TCP: the handshake with the guest is not complete.
    Handshake,
    /// Data flows both ways.
    Open,
    /// UDP: no peer has replied.
    Unanswered,
    /// TCP: one direction is closed.
    Closing,
    /// TCP: both are closed, that to the guest first.
    TimeWait,
    /// TCP: the host connection failed, and the reset for the guest waits for room on the link.
    Failed,
}

/// Flows in the slots of one part of a worker's tables, and the begin of the next part, if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In no particular order.
    pub flows: Vec<Flow>,
    /// The argument of the next call.
    pub next: Option<u64>,
}

/// Slots of one page.
pub(crate) const SLOTS: u32 = 256;

/// Limit on the flows of one page.
pub const MAX_PAGE: usize = SLOTS as usize;

impl Phase {
    const ALL: [Self; 7] = [
        Self::Connecting,
        Self::Handshake,
        Self::Open,
        Self::Unanswered,
        Self::Closing,
        Self::TimeWait,
        Self::Failed,
    ];
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connecting => "connecting",
            Self::Handshake => "handshake",
            Self::Open => "open",
            Self::Unanswered => "unanswered",
            Self::Closing => "closing",
            Self::TimeWait => "time-wait",
            Self::Failed => "failed",
        })
    }
}

impl FromStr for Phase {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut all = Self::ALL.into_iter();
        all.find(|phase| phase.to_string() == text).ok_or(())
    }
}

/// Splits a position into the kind of flow and the first slot.
pub(crate) fn place(at: u64) -> (u32, u32) {
    #[expect(clippy::cast_possible_truncation, reason = "takes the two halves apart")]
    ((at >> 32) as u32, at as u32)
}

/// Returns the position after a page of `kind` that began at slot `first`, in a table of `slots` slots; `kinds` is the number
/// of kinds.
pub(crate) fn next((kind, first): (u32, u32), slots: u32, kinds: u32) -> Option<u64> {
    let behind = first.saturating_add(SLOTS);
    if behind < slots {
        return Some(u64::from(kind) << 32 | u64::from(behind));
    }
    (kind + 1 < kinds).then(|| u64::from(kind + 1) << 32)
}
