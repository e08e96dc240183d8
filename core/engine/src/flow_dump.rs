//! Lists the flows of a worker, for the control socket's clients.
//!
//! The list consists of pages, so that packets wait for one page only while the list is made.

use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;
use core::time::Duration;

use crate::FlowId;
use crate::egress::EgressProtocol;
use crate::state::record;

/// Snapshot of a flow's state, as an entry of the list of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Identifier of the flow.
    pub id: FlowId,
    /// Protocol of the flow: TCP, UDP or ICMP echo.
    pub protocol: EgressProtocol,
    /// The guest's address and port; for ICMP, the echo id takes the port's place.
    pub guest: SocketAddr,
    /// The remote address and port as the guest sees them. For a UDP endpoint it is one of several peers, and `None`
    /// before the first.
    pub remote: Option<SocketAddr>,
    /// True if a client of a published port has opened the flow, false if the guest has.
    pub came_in: bool,
    /// Phase in the life of the flow.
    pub phase: Phase,
    /// Time since the flow was opened.
    pub age: Duration,
    /// Bytes of payload that the flow has carried in both directions.
    pub traffic: Traffic,
}

/// Bytes of payload that a flow has carried in each direction; retransmitted bytes count once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of payload from the guest.
    pub up: u64,
    /// Bytes of payload to the guest.
    pub down: u64,
}

record! { Traffic { up, down } }

/// Phase in the life of a flow, as the list of flows shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// TCP: the connection to the remote host is not established yet.
    Connecting,
    /// TCP: the handshake with the guest is not complete.
    Handshake,
    /// Data can be sent in both directions.
    Open,
    /// UDP: no peer has replied yet.
    Unanswered,
    /// TCP: one direction is closed, by the guest or by the remote host.
    Closing,
    /// TCP: both directions are closed, the one to the guest first, so that the engine is in the state TIME-WAIT (RFC
    /// 9293).
    TimeWait,
    /// TCP: the connection to the remote host has failed, and the reset for the guest waits for room on the link.
    Failed,
}

/// A page of the list of flows: the flows in some slots of a worker's tables, and the position of the next page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Flows of the page, in no particular order.
    pub flows: Vec<Flow>,
    /// Position of the next page for [`Engine::flows_from`](crate::Engine::flows_from); `None` after the last page.
    pub next: Option<u64>,
}

/// Number of slots of a worker's tables that one page covers.
pub(crate) const SLOTS: u32 = 256;

/// Maximum number of flows in one page of the list of flows.
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

/// Splits the position of a page into the number of the flow kind and the first slot.
pub(crate) fn place(at: u64) -> (u32, u32) {
    #[expect(clippy::cast_possible_truncation, reason = "takes the two halves apart")]
    ((at >> 32) as u32, at as u32)
}

/// Returns the position of the page after the one of `kind` at slot `first`, in a table of `slots` slots; `kinds` is
/// the number of flow kinds. `None` after the last page.
pub(crate) fn next((kind, first): (u32, u32), slots: u32, kinds: u32) -> Option<u64> {
    let behind = first.saturating_add(SLOTS);
    if behind < slots {
        return Some(u64::from(kind) << 32 | u64::from(behind));
    }
    (kind + 1 < kinds).then(|| u64::from(kind + 1) << 32)
}
