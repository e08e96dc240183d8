//! Events of flows: their opening, the decision about them, further destinations, refusals, and their end.
//!
//! A program that embeds the engine implements [`FlowEvents`] and passes it to [`Engine::report_events`]. The engine calls
//! [`FlowEvents::report`] from its handlers, once for each event, with a value of fixed size. The call happens between two
//! packets: an implementation copies the value, and does not wait. Events contain addresses, ports, amounts and reasons, and
//! no payload.
//!
//! DNS queries over UDP to the engine's own forwarder are no flows and have no events.
//!
//! [`Engine::report_events`]: crate::Engine::report_events

use core::fmt::{self, Debug};
use core::net::SocketAddr;
use core::time::Duration;

use pontoon_names::HostName;
use pontoon_proxy::Refusal as ProxyRefusal;

use crate::ctx::Net;
use crate::egress::{DecisionGround, EgressProtocol, UnprovenCause};
use crate::flow_dump::Traffic;
use crate::policy::Refusal;
use crate::{Failure, FlowId, Instant};
use crate::state::{record, record_enum};

/// Receiver of the events of a worker's flows.
pub trait FlowEvents: Debug + Send {
    /// Takes an event, without waiting.
    ///
    /// A receiver with bounded memory keeps room for one [`FlowEventKind::Closed`] for each
    /// [`FlowEventKind::Opened`] that it has kept; the closing event of such a flow has `announced` set.
    fn report(&mut self, event: &FlowEvent) -> Reported;
}

/// Result of reporting an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// The receiver has the event.
    Kept,
    /// The receiver has no room for the event, which is lost and counted.
    Dropped,
    /// The receiver takes only so many events of this kind in a second. It counts the event, and reports the number itself.
    Omitted,
    /// Nothing uses events at present.
    Unused,
}

/// Event of a flow, or the refusal of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEvent {
    /// Time of the turn in which the event has happened.
    pub at: Instant,
    /// Identifier of the flow; `None` for a refusal.
    pub flow: Option<FlowId>,
    /// Both ends of the flow.
    pub ends: FlowEnds,
    /// Kind of the event.
    pub kind: FlowEventKind,
}

/// Protocol and both ends of a flow, as the guest sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEnds {
    /// Protocol of the flow: TCP, UDP or ICMP echo.
    pub protocol: EgressProtocol,
    /// The guest's address and port; for ICMP, the echo id takes the port's place.
    pub guest: SocketAddr,
    /// The remote address and port. For a UDP endpoint or an echo id, those of the event's datagram; `None` for the endpoint
    /// of a published UDP port. The port of an echo request is 0.
    pub remote: Option<SocketAddr>,
    /// True if the remote host has opened the flow through a published port, or has sent first.
    pub came_in: bool,
}

/// Kinds of [`FlowEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEventKind {
    /// A flow was opened. For a TCP connection of the guest, the host's connect has begun.
    Opened {
        /// Destination on the host's side, if it differs from the remote address.
        target: Option<SocketAddr>,
    },
    /// A rule or the decider has permitted the flow, or its further destination. The event follows that of the flow.
    Decided {
        /// The ground of the decision.
        ground: DecisionGround,
    },
    /// A part of the name in the ClientHello of a TCP connection. The parts of a name precede the connection's
    /// [`FlowEventKind::Proof`] in order, without other events of the worker in between.
    ServerName {
        /// The part of the name.
        part: NamePart,
    },
    /// A TCP connection of the guest has proved the domain of a rule, or is reset because it has not.
    Proof {
        /// The result of the proof.
        result: Result<(), UnprovenCause>,
        /// The rule that permits the connection, or the first one that would have permitted it.
        ground: Option<DecisionGround>,
    },
    /// The guest has sent to a further destination by the same UDP endpoint or echo id, or a further remote host has sent to
    /// the endpoint first.
    Peer {
        /// Destination on the host's side, if it differs from the remote address.
        target: Option<SocketAddr>,
    },
    /// A flow was refused: no host socket was opened, or the client of a published port was disconnected.
    Refused {
        /// Reason of the refusal.
        reason: RefusalReason,
    },
    /// A flow has ended.
    Closed {
        /// Reason of the end.
        reason: CloseReason,
        /// Bytes of payload that the flow has carried.
        traffic: Traffic,
        /// Time since the flow was opened.
        age: Duration,
        /// True if the receiver has kept the opening event of this flow.
        announced: bool,
    },
}

/// A part of a host name, of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamePart {
    /// True for the first part of a name.
    pub is_first: bool,
    octets: [u8; Self::LEN],
    len: u8,
}

impl NamePart {
    /// Maximum number of octets of a part.
    pub const LEN: usize = 32;

    /// Creates a part of up to [`Self::LEN`] octets; `None` if there are more.
    #[must_use]
    pub fn new(text: &[u8], is_first: bool) -> Option<Self> {
        let mut octets = [0; Self::LEN];
        octets.get_mut(..text.len())?.copy_from_slice(text);
        Some(Self {
            is_first,
            octets,
            len: u8::try_from(text.len()).ok()?,
        })
    }

    /// Returns the octets.
    #[must_use]
    pub fn octets(&self) -> &[u8] {
        self.octets.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// Reason for which a flow was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The fixed part of the policy refuses the destination; never [`Refusal::Rule`].
    Policy(Refusal),
    /// The egress rules refuse the destination.
    Egress(DecisionGround),
    /// A limit on flows, or on new flows per second, was reached.
    Limit,
    /// The host could not open a socket.
    Host(Failure),
}

/// Reason for which a flow has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// TCP: both directions were closed, the guest's first.
    GuestFin,
    /// TCP: both directions were closed, the remote host's first.
    PeerFin,
    /// TCP: the guest has reset the connection.
    GuestReset,
    /// TCP: the remote host has reset the connection.
    PeerReset,
    /// The flow was idle for its lifetime, or an end of a TCP connection does not respond.
    Timeout,
    /// The policy does not permit the destination any more, or the connection has reached the host itself.
    Policy,
    /// TCP: the connection has not proved the domain of a rule that would permit it.
    Unproven,
    /// The flow was closed in favour of another one.
    Evicted,
    /// TCP: the host's connect has failed.
    ConnectFailed(Failure),
    /// TCP: the host's socket has failed after the connect.
    Failed(Failure),
    /// TCP: the upstream proxy has refused the connection, or does not comply with its protocol.
    ProxyRefused(ProxyRefusal),
    /// TCP: the connection to the upstream proxy has failed before the proxy has established the one to the destination.
    ProxyFailed(Failure),
    /// The user has closed the flow.
    Killed,
    /// The guest has disconnected from the link.
    GuestGone,
    /// UDP: the port was published, or is not published any more.
    PortChanged,
    /// The engine has ended in the normal way.
    Ended,
    /// The engine has closed the flow because of a fault of its own.
    Internal,
}

impl CloseReason {
    /// Returns the reason for a TCP connection whose host socket has failed after the connect.
    pub(crate) const fn of_failure(failure: Failure) -> Self {
        match failure {
            Failure::Reset => Self::PeerReset,
            Failure::TimedOut => Self::Timeout,
            failure => Self::Failed(failure),
        }
    }

    /// Returns the host's error, if it is the reason.
    #[must_use]
    pub const fn failure(self) -> Option<Failure> {
        match self {
            Self::ConnectFailed(failure) | Self::Failed(failure) | Self::ProxyFailed(failure) => {
                Some(failure)
            }
            _ => None,
        }
    }
}

/// Reasons without a host's error, in the order of their codes, which begin at 1.
const PLAIN: [CloseReason; 13] = [
    CloseReason::GuestFin,
    CloseReason::PeerFin,
    CloseReason::GuestReset,
    CloseReason::PeerReset,
    CloseReason::Timeout,
    CloseReason::Policy,
    CloseReason::Evicted,
    CloseReason::Killed,
    CloseReason::GuestGone,
    CloseReason::PortChanged,
    CloseReason::Ended,
    CloseReason::Internal,
    CloseReason::Unproven,
];

/// First byte of the codes of [`CloseReason::ConnectFailed`], [`CloseReason::ProxyFailed`] and [`CloseReason::Failed`].
const CONNECT_FAILED: u8 = 0xfe;
const PROXY_FAILED: u8 = 0xfd;
const FAILED: u8 = 0xff;

/// First code of [`CloseReason::ProxyRefused`], of which there are 4,096.
const PROXY_REFUSED: u16 = 0xe000;

impl CloseReason {
    /// Returns the reason as a number for memory and files; never 0.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::ConnectFailed(failure) => u16::from_be_bytes([CONNECT_FAILED, failure_code(failure)]),
            Self::Failed(failure) => u16::from_be_bytes([FAILED, failure_code(failure)]),
            Self::ProxyFailed(failure) => u16::from_be_bytes([PROXY_FAILED, failure_code(failure)]),
            Self::ProxyRefused(refusal) => PROXY_REFUSED | refusal.code(),
            plain => {
                let codes = (1_u8..).zip(PLAIN).find(|(_, reason)| *reason == plain);
                codes.map_or(0, |(code, _)| u16::from_be_bytes([code, 0]))
            }
        }
    }

    /// Returns the reason that [`Self::code`] has encoded; `None` if there is no such reason.
    #[must_use]
    pub fn of_code(code: u16) -> Option<Self> {
        match code.to_be_bytes() {
            [CONNECT_FAILED, failure] => failure_of_code(failure).map(Self::ConnectFailed),
            [FAILED, failure] => failure_of_code(failure).map(Self::Failed),
            [PROXY_FAILED, failure] => failure_of_code(failure).map(Self::ProxyFailed),
            [0xe0..=0xef, _] => ProxyRefusal::of_code(code - PROXY_REFUSED).map(Self::ProxyRefused),
            [place, 0] => PLAIN.get(usize::from(place.checked_sub(1)?)).copied(),
            _ => None,
        }
    }
}

/// Failures with a name, in the order of their codes.
const FAILURES: [Failure; 11] = [
    Failure::WouldBlock,
    Failure::Refused,
    Failure::Reset,
    Failure::TimedOut,
    Failure::NetUnreachable,
    Failure::HostUnreachable,
    Failure::Prohibited,
    Failure::TooBig,
    Failure::Exhausted,
    Failure::InUse,
    Failure::Invalid,
];

/// Code of the error number 0; error numbers of Linux are below 134.
const FIRST_OTHER: u8 = 16;

/// Returns a failure as a number for memory and files.
#[must_use]
pub fn failure_code(failure: Failure) -> u8 {
    if let Failure::Other(number) = failure {
        return FIRST_OTHER.saturating_add(u8::try_from(number).unwrap_or(u8::MAX));
    }
    let found = (0_u8..).zip(FAILURES).find(|(_, other)| *other == failure);
    found.map_or(u8::MAX, |(code, _)| code)
}

/// Returns the failure that [`failure_code`] has encoded; `None` if there is no such failure.
#[must_use]
pub fn failure_of_code(code: u8) -> Option<Failure> {
    match code.checked_sub(FIRST_OTHER) {
        Some(number) => Some(Failure::Other(number.into())),
        None => FAILURES.get(usize::from(code)).copied(),
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GuestFin => "guest-fin",
            Self::PeerFin => "peer-fin",
            Self::GuestReset => "guest-reset",
            Self::PeerReset => "peer-reset",
            Self::Timeout => "timeout",
            Self::Policy => "policy",
            Self::Unproven => "unproven",
            Self::Evicted => "evicted",
            Self::ConnectFailed(_) => "connect-failed",
            Self::Failed(_) => "host-error",
            Self::ProxyRefused(_) => "proxy-refused",
            Self::ProxyFailed(_) => "proxy-failed",
            Self::Killed => "killed",
            Self::GuestGone => "guest-gone",
            Self::PortChanged => "port-changed",
            Self::Ended => "ended",
            Self::Internal => "internal-error",
        })
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Policy(Refusal::Class) => "address-class",
            Self::Policy(Refusal::Unassigned) => "unassigned",
            Self::Policy(Refusal::HostLoopback) => "host-loopback",
            Self::Policy(Refusal::HostAddress) => "host-address",
            Self::Policy(Refusal::Proxy) => "proxy",
            Self::Policy(Refusal::Rule) | Self::Egress(DecisionGround::Rule(_)) => "rule",
            Self::Egress(DecisionGround::Unlisted) => "unlisted",
            Self::Egress(DecisionGround::Resolver) => "resolver",
            Self::Egress(DecisionGround::TlsOnly(_)) => "tls-only",
            Self::Egress(DecisionGround::Decider | DecisionGround::Redirect) => "decider",
            Self::Egress(DecisionGround::Proxy) => "proxy",
            Self::Limit => "limit",
            Self::Host(_) => "host-error",
        })
    }
}

/// State of the opening event of a flow, which is stored with the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Announcement {
    /// The receiver does not have the event.
    #[default]
    Missing,
    /// The receiver has the event.
    Kept,
    /// The closing event was reported.
    Closed,
}

record_enum! { Announcement { 0 = Missing, 1 = Kept, 2 = Closed } }

/// The grounds on which a flow, or its further destination, is permitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grounds {
    /// The allow rule that matches.
    pub(crate) rule: Option<DecisionGround>,
    /// The verdict of the decider.
    pub(crate) verdict: Option<DecisionGround>,
    /// [`DecisionGround::Proxy`] if the flow uses the upstream proxy.
    pub(crate) proxy: Option<DecisionGround>,
}

record! { Grounds { rule, verdict, proxy } }

impl Grounds {
    /// The grounds of a flow about which neither rules nor a decider have decided.
    pub(crate) const NONE: Self = Self {
        rule: None,
        verdict: None,
        proxy: None,
    };

    /// The ground of a client that the decider has allowed.
    pub(crate) const ALLOWED: Self = Self {
        rule: None,
        verdict: Some(DecisionGround::Decider),
        proxy: None,
    };
}

impl Net {
    /// Reports that a flow was opened, and its grounds. Returns the state that the flow has to store.
    pub(crate) fn report_opened(
        &mut self,
        flow: FlowId,
        ends: FlowEnds,
        target: Option<SocketAddr>,
        grounds: Grounds,
        now: Instant,
    ) -> Announcement {
        let target = target.filter(|target| Some(*target) != ends.remote);
        let opened = self.report(Some(flow), ends, FlowEventKind::Opened { target }, now);
        self.report_grounds(flow, ends, grounds, now);
        match opened {
            Reported::Kept => Announcement::Kept,
            Reported::Dropped | Reported::Omitted | Reported::Unused => Announcement::Missing,
        }
    }

    /// Reports that a connection has proved the domain of a rule, or has not, with the name in its ClientHello.
    pub(crate) fn report_proof(
        &mut self,
        flow: FlowId,
        ends: FlowEnds,
        (result, ground): (Result<(), UnprovenCause>, Option<DecisionGround>),
        name: Option<&HostName>,
        now: Instant,
    ) {
        let octets = name.map_or("", HostName::as_str).as_bytes();
        for (place, part) in octets.chunks(NamePart::LEN).enumerate() {
            if let Some(part) = NamePart::new(part, place == 0) {
                self.report(Some(flow), ends, FlowEventKind::ServerName { part }, now);
            }
        }
        self.report(Some(flow), ends, FlowEventKind::Proof { result, ground }, now);
    }

    /// Reports a further peer of a flow, and its grounds.
    pub(crate) fn report_peer(
        &mut self,
        flow: FlowId,
        ends: FlowEnds,
        target: Option<SocketAddr>,
        grounds: Grounds,
        now: Instant,
    ) {
        let target = target.filter(|target| Some(*target) != ends.remote);
        let reported = self.report(Some(flow), ends, FlowEventKind::Peer { target }, now);
        // The decision refers to the event before it.
        if reported != Reported::Omitted {
            self.report_grounds(flow, ends, grounds, now);
        }
    }

    fn report_grounds(&mut self, flow: FlowId, ends: FlowEnds, grounds: Grounds, now: Instant) {
        for ground in grounds
            .rule
            .into_iter()
            .chain(grounds.verdict)
            .chain(grounds.proxy)
        {
            self.report(Some(flow), ends, FlowEventKind::Decided { ground }, now);
        }
    }

    /// Reports that a flow has ended, unless that was reported before.
    pub(crate) fn report_closed(
        &mut self,
        flow: FlowId,
        ends: FlowEnds,
        announcement: Announcement,
        (reason, traffic, age): (CloseReason, Traffic, Duration),
        now: Instant,
    ) {
        if announcement == Announcement::Closed {
            return;
        }
        let closed = FlowEventKind::Closed {
            reason: self.closing_as.unwrap_or(reason),
            traffic,
            age,
            announced: announcement == Announcement::Kept,
        };
        self.report(Some(flow), ends, closed, now);
    }

    /// Reports that a flow was refused.
    pub(crate) fn report_refused(&mut self, ends: FlowEnds, reason: RefusalReason, now: Instant) {
        self.report(None, ends, FlowEventKind::Refused { reason }, now);
    }

    fn report(
        &mut self,
        flow: Option<FlowId>,
        ends: FlowEnds,
        kind: FlowEventKind,
        now: Instant,
    ) -> Reported {
        let Some(events) = &mut self.events else {
            return Reported::Unused;
        };
        let reported = events.report(&FlowEvent {
            at: now,
            flow,
            ends,
            kind,
        });
        self.counters.events_dropped += u64::from(reported == Reported::Dropped);
        self.counters.events_omitted += u64::from(reported == Reported::Omitted);
        reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_reasons_are_decoded() {
        let failures = FAILURES.into_iter().chain([0, 1, 133].map(Failure::Other));
        let failed = failures.flat_map(|failure| {
            [
                CloseReason::ConnectFailed(failure),
                CloseReason::ProxyFailed(failure),
                CloseReason::Failed(failure),
            ]
        });
        let refused = [
            ProxyRefusal::Status(302),
            ProxyRefusal::Reply(5),
            ProxyRefusal::Closed,
        ];
        let mut codes: Vec<u16> = Vec::new();
        for reason in PLAIN
            .into_iter()
            .chain(failed)
            .chain(refused.map(CloseReason::ProxyRefused))
        {
            let code = reason.code();
            assert_ne!(code, 0, "{reason}");
            assert_eq!(CloseReason::of_code(code), Some(reason));
            codes.push(code);
        }
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(
            codes.len(),
            PLAIN.len() + 3 * (FAILURES.len() + 3) + refused.len()
        );
        for wrong in [0, 1, 0x0101, 0x0e00, 0xfe0b] {
            assert_eq!(CloseReason::of_code(wrong), None, "{wrong:#x}");
        }
    }
}
