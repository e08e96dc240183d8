//! The limit on events that need no new flow: refusals, and further peers of flows. A guest can cause one by each datagram, and
//! without the limit their records would replace all others in the files that are kept.

use pontoon_engine::Instant;
use pontoon_engine::flow_events::{FlowEvent, FlowEventKind};
use pontoon_engine::flow_rate::{Admission, FlowOpener, admit};

/// Limit on the events of each class that a worker reports in a second, if `--max-flow-rate` is not lower.
pub const MOST_A_SECOND: u32 = 1000;

/// Class of events that have a limit of their own, so that a remote host cannot displace the events of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OmittedClass {
    /// True for refusals, false for further peers.
    pub is_refusal: bool,
    /// True if a remote host has caused the event by a published port, or has sent first.
    pub came_in: bool,
}

/// Number of classes.
pub(super) const CLASSES: usize = 4;

/// Limits of one worker.
#[derive(Debug)]
pub(super) struct OmissionGate {
    rate: u32,
    /// Theoretical arrival times of the last events ([`admit`]).
    due: [Instant; CLASSES],
}

impl OmittedClass {
    fn of(event: &FlowEvent) -> Option<Self> {
        let is_refusal = match event.kind {
            FlowEventKind::Refused { .. } => true,
            FlowEventKind::Peer { .. } => false,
            FlowEventKind::Opened { .. }
            | FlowEventKind::Decided { .. }
            | FlowEventKind::ServerName { .. }
            | FlowEventKind::Proof { .. }
            | FlowEventKind::Closed { .. } => return None,
        };
        Some(Self {
            is_refusal,
            came_in: event.ends.came_in,
        })
    }

    /// Returns the place of the class in arrays and in a ring.
    pub(super) fn index(self) -> usize {
        usize::from(self.is_refusal) << 1 | usize::from(self.came_in)
    }

    /// Returns the class at a place.
    pub(super) const fn at(index: usize) -> Self {
        Self {
            is_refusal: index & 2 != 0,
            came_in: index & 1 != 0,
        }
    }
}

impl OmissionGate {
    pub(super) fn new(max_flow_rate: Option<u32>) -> Self {
        Self {
            rate: max_flow_rate.map_or(MOST_A_SECOND, |rate| rate.clamp(1, MOST_A_SECOND)),
            due: [Instant(0); CLASSES],
        }
    }

    /// Returns the class of an event that is beyond its limit. An event within the limit is counted against it.
    pub(super) fn omits(&mut self, event: &FlowEvent) -> Option<OmittedClass> {
        let class = OmittedClass::of(event)?;
        let due = self.due.get_mut(class.index())?;
        match admit(due, self.rate, FlowOpener::Guest, event.at) {
            Admission::Admitted => None,
            Admission::Refused => Some(class),
        }
    }
}
