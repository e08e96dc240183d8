//! Records about flows, as a function of the program receives them.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use pontoon_engine::flow_events::FlowEventKind;
use pontoon_worker::events::recorder::Record;

use crate::Protocol;

/// Record of an event of a flow, of lost events, or of the beginning or end of a network.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// Number of the record. Numbers begin at 1 and have no gaps, except for events that were lost.
    pub number: u64,
    /// Number of the last event that the record is about. It differs from `number` for [`EventKind::Gap`] only.
    pub last_number: u64,
    /// Kind of the record.
    pub kind: EventKind,
    /// Protocol of the flow; `None` for records about no single flow.
    pub protocol: Option<Protocol>,
    /// The guest's address and port; for an echo request, the id takes the port's place.
    pub guest: Option<SocketAddr>,
    /// The other address and port, as the guest sees them.
    pub remote: Option<SocketAddr>,
    /// True if the other end has opened the flow through a published port.
    pub is_inbound: bool,
    /// Bytes of payload that the flow has carried from the guest and to it; only for [`EventKind::Closed`].
    pub bytes: Option<(u64, u64)>,
    /// Time since the flow was opened; only for [`EventKind::Closed`].
    pub age: Option<Duration>,
    /// The whole record as an object of JSON on one line, without the newline. The page `docs/events.md` describes its fields,
    /// among them the reason of a refusal or an end and the rule that has decided.
    pub json: &'a str,
}

/// Kind of an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// The network has started.
    Start,
    /// A flow was opened.
    Opened,
    /// A rule or the decider has permitted a flow or its further destination.
    Decided,
    /// A flow has a further destination.
    Peer,
    /// A flow was refused.
    Refused,
    /// A flow has ended.
    Closed,
    /// Events were lost, because there was no room for them.
    Gap,
    /// The number of events that have no records of their own, because there were too many in a second.
    Omitted,
    /// A flow has ended with an engine that has failed.
    Lost,
    /// The network has ended.
    End,
}

impl<'a> Event<'a> {
    pub(crate) fn of(record: &Record<'a>) -> Self {
        let ends = record.event.map(|event| event.ends);
        let (bytes, age) = match record.event.map(|event| event.kind) {
            Some(FlowEventKind::Closed { traffic, age, .. }) => (Some((traffic.up, traffic.down)), Some(age)),
            _ => (None, None),
        };
        Self {
            number: record.numbers.0,
            last_number: record.numbers.1,
            kind: EventKind::of(record.kind),
            protocol: record.protocol.map(Protocol::of),
            guest: ends.map(|ends| ends.guest),
            remote: ends.and_then(|ends| ends.remote),
            is_inbound: ends.is_some_and(|ends| ends.came_in),
            bytes,
            age,
            json: record.line.trim_end(),
        }
    }
}

/// Kinds and the words for them in the field `type` of a record.
const KINDS: [(EventKind, &str); 10] = [
    (EventKind::Start, "start"),
    (EventKind::Opened, "opened"),
    (EventKind::Decided, "decided"),
    (EventKind::Peer, "peer"),
    (EventKind::Refused, "refused"),
    (EventKind::Closed, "closed"),
    (EventKind::Gap, "gap"),
    (EventKind::Omitted, "omitted"),
    (EventKind::Lost, "lost"),
    (EventKind::End, "end"),
];

impl EventKind {
    fn of(word: &str) -> Self {
        let mut kinds = KINDS.iter();
        kinds
            .find(|(_, known)| *known == word)
            .map_or(Self::Lost, |(kind, _)| *kind)
    }

    /// Returns the word for the kind, which the field `type` of a record contains.
    #[must_use]
    pub fn name(self) -> &'static str {
        let mut kinds = KINDS.iter();
        kinds
            .find(|(kind, _)| *kind == self)
            .map_or("lost", |(_, word)| word)
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
