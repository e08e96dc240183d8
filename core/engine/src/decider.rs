//! The decider: a program of the operator that decides about each new flow which the static policy allows.
//!
//! The engine asks it before a host socket exists: for a connection, a destination of a UDP endpoint or of an echo id,
//! and for a client of a published port. An answer is a verdict at once, or later by the token of the request. Until
//! then the engine keeps the first frame of the flow, or the client's socket or datagram, in a bounded table, and drops
//! the repetitions of the frame. The kept frame is handled again when the verdict arrives, as if the link had received
//! it then. A flow without a verdict at the deadline is denied.

mod pending;
mod shares;
#[cfg(test)]
mod tests;

use core::fmt::Debug;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use crate::WorkerId;
use crate::ctx::Net;
use crate::egress::{DecisionGround, EgressProtocol};
use crate::flow_events::{FlowEnds, RefusalReason};
use crate::policy::{Permitted, Refused};
use crate::time::Instant;

pub(crate) use pending::{DecidedFlow, Decisions, Kept, KeptDatagrams, KeptFrame, Pending, PendingKey};

/// Deadline of a verdict if no option sets it.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// Maximum number of flows of one worker whose decision is pending, connections that the guest has reset meanwhile and flows of
/// a guest that has gone included. Further flows are denied.
pub const MOST_PENDING: usize = 1024;

/// Maximum number of bytes of frames and datagrams that one worker keeps for pending decisions.
pub const MOST_BYTES: usize = 2 << 20;

/// Decides about new flows, in the engine's own thread.
pub trait Decider: Debug + Send {
    /// Decides about one flow. The function must not block.
    fn decide(&mut self, request: &FlowRequest) -> Answer;
}

/// Answer of a [`Decider`] to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The verdict.
    Now(Verdict),
    /// The verdict follows by [`Engine::take_verdict`](crate::Engine::take_verdict).
    Later,
    /// The program that would decide is not connected: the flow is denied.
    Unavailable,
}

/// Number of a request, unique among the pending requests of all workers: the worker's number in bits 44 to 51, and a
/// sequence number with a random start. It is an integer that a double-precision number represents exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DecisionToken(pub u64);

/// Request for a decision about a new flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRequest {
    /// Number by which a later verdict refers to the request.
    pub token: DecisionToken,
    /// Protocol of the flow.
    pub protocol: EgressProtocol,
    /// Direction of the flow.
    pub direction: Direction,
    /// Address and port of the guest's end. For an echo request, the id takes the port's place.
    pub guest: SocketAddr,
    /// Address and port of the other end on the host's side: the translated destination, or the client. The port is 0
    /// for an echo request.
    pub remote: SocketAddr,
    /// The egress rule that allows the flow, if there are allow rules.
    pub rule: Option<String>,
    /// Time within which the verdict has to arrive.
    pub deadline: Duration,
}

/// Direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The guest opens the flow.
    Out {
        /// Destination as the guest has sent it; the port is 0 for an echo request.
        destination: SocketAddr,
    },
    /// A client of a published port opens the flow.
    In {
        /// Host address and port of the published port.
        published: SocketAddr,
    },
}

/// Decision about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The flow is opened as if there were no decider.
    Allow,
    /// The flow is refused.
    Deny(Denial),
    /// The flow of the guest is opened to this address. The port is ignored for an echo request.
    Redirect(SocketAddr),
    /// The TCP connection of the guest is carried by the stream socket that was given to the host
    /// ([`Host::tcp_adopt`](crate::Host::tcp_adopt)).
    RedirectToStream,
}

/// The way in which a denied flow is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// TCP: a reset. UDP: ICMP port unreachable. Echo: as [`Self::Unreachable`].
    Reset,
    /// ICMP "administratively prohibited", for TCP with a reset behind it.
    Unreachable,
    /// No answer. A client of a published TCP port is reset, because the host's kernel has accepted its connection.
    Drop,
}

/// Result of a verdict for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TokenState {
    /// The verdict was applied.
    Known,
    /// No decision with this token is pending: it was made already, the deadline has passed, the guest has reset the
    /// connection, or it has gone.
    Unknown,
}

/// The state of a flow after the decider was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ruling {
    /// The flow may be opened.
    Allowed,
    /// The flow is opened to another address.
    Redirected(SocketAddr),
    /// The TCP connection is carried by the stream socket that was given to the host.
    RedirectedToStream,
    /// The flow is refused.
    Denied(Denial),
    /// The decision is pending.
    Pending(DecisionToken),
}

impl DecisionToken {
    /// Returns the worker that has made the request.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes the token's fields apart")]
    pub const fn worker(self) -> WorkerId {
        WorkerId((self.0 >> SEQUENCE_BITS) as u8)
    }
}

impl Verdict {
    /// Returns the denial of a flow for which there is no verdict.
    #[must_use]
    pub const fn denial(protocol: EgressProtocol) -> Self {
        Self::Deny(Denial::usual(protocol))
    }
}

impl Denial {
    /// Returns the way in which a flow without a verdict is refused: as egress rules refuse it.
    const fn usual(protocol: EgressProtocol) -> Self {
        match protocol {
            EgressProtocol::Tcp => Self::Reset,
            EgressProtocol::Udp | EgressProtocol::Icmp => Self::Unreachable,
        }
    }
}

impl From<Verdict> for Ruling {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allow => Self::Allowed,
            Verdict::Deny(denial) => Self::Denied(denial),
            Verdict::Redirect(to) => Self::Redirected(to),
            Verdict::RedirectToStream => Self::RedirectedToStream,
        }
    }
}

impl Ruling {
    /// Returns the ground of a flow that is opened, for its events.
    pub(crate) const fn ground(self) -> Option<DecisionGround> {
        match self {
            Self::Allowed => Some(DecisionGround::Decider),
            Self::Redirected(_) | Self::RedirectedToStream => Some(DecisionGround::Redirect),
            Self::Denied(_) | Self::Pending(_) => None,
        }
    }
}

/// A flow about which the decider is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewFlow {
    pub(crate) protocol: EgressProtocol,
    pub(crate) direction: Direction,
    pub(crate) guest: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Key by which further frames of the flow are recognized; `None` for a client with a socket of its own.
    pub(crate) key: Option<PendingKey>,
}

impl NewFlow {
    /// Returns both ends of the flow, for events.
    fn ends(&self) -> FlowEnds {
        let (remote, came_in) = match self.direction {
            Direction::Out { destination } => (destination, false),
            Direction::In { .. } => (self.remote, true),
        };
        FlowEnds {
            protocol: self.protocol,
            guest: self.guest,
            remote: Some(remote),
            came_in,
        }
    }
}

impl Net {
    /// Checks a destination against the static policy, as [`Policy::check_egress`](crate::policy::Policy::check_egress).
    /// A permitted destination is not counted again while a kept frame is handled with its verdict.
    pub(crate) fn check_egress(
        &mut self,
        protocol: EgressProtocol,
        written: IpAddr,
        port: u16,
        now: Instant,
    ) -> Result<Permitted, Refused> {
        let counted = self.decisions.as_ref().is_some_and(|it| it.has_verdict());
        if counted && let Ok(permitted) = self.policy.check_again(protocol, written, port, now) {
            return Ok(permitted);
        }
        self.policy.check_egress(protocol, written, port, now)
    }

    /// Sets the verdict about the flow whose kept frame is handled next, or removes it.
    pub(crate) fn set_verdict(&mut self, verdict: Option<DecidedFlow>) {
        if let Some(decisions) = &mut self.decisions {
            decisions.set_verdict(verdict);
        }
    }

    /// Returns true if the decision about the flow of a frame is pending, and counts the frame, which is to be dropped.
    pub(crate) fn awaits_decision(&mut self, key: &PendingKey) -> bool {
        let awaits = self.decisions.as_ref().is_some_and(|it| it.awaits(key));
        self.counters.decisions_repeated += u64::from(awaits);
        awaits
    }

    /// Returns the tokens of all pending decisions with their protocols, the oldest first.
    pub(crate) fn pending_decisions(&self) -> Vec<(DecisionToken, EgressProtocol)> {
        let decisions = self.decisions.as_ref();
        decisions.map_or_else(Vec::new, |decisions| decisions.tokens())
    }

    /// Asks the decider about a flow that the static policy allows, or returns the verdict with which its kept frame is
    /// handled, and reports a denial. `keep` returns what is kept while the decision is pending. Without a decider, every flow
    /// is allowed.
    pub(crate) fn judge(&mut self, flow: &NewFlow, now: Instant, keep: impl FnOnce() -> Kept) -> Ruling {
        let ruling = self.ask_decider(flow, now, keep);
        if let Ruling::Denied(_) = ruling {
            self.report_denied(flow.ends(), now);
        }
        ruling
    }

    /// Reports that the decider has denied a flow, or that there is no verdict.
    pub(crate) fn report_denied(&mut self, ends: FlowEnds, now: Instant) {
        self.report_refused(ends, RefusalReason::Egress(DecisionGround::Decider), now);
    }

    fn ask_decider(&mut self, flow: &NewFlow, now: Instant, keep: impl FnOnce() -> Kept) -> Ruling {
        let Some(decisions) = &mut self.decisions else {
            return Ruling::Allowed;
        };
        if let Some(verdict) = decisions.take_verdict(flow) {
            return verdict.into();
        }
        let unavailable = Ruling::Denied(Denial::usual(flow.protocol));
        if decisions.is_full(flow) {
            self.counters.decisions_unavailable += 1;
            return unavailable;
        }
        let rule = match flow.direction {
            Direction::Out { destination } => self.policy.allowing_rule(flow.protocol, destination, now),
            Direction::In { .. } => None,
        };
        match decisions.ask(flow, rule) {
            (_, Answer::Now(verdict)) => {
                self.counters.decisions_asked += 1;
                self.counters.decisions_denied += u64::from(matches!(verdict, Verdict::Deny(_)));
                verdict.into()
            }
            (token, Answer::Later) => {
                self.counters.decisions_asked += 1;
                decisions.insert(token, flow, keep(), now);
                Ruling::Pending(token)
            }
            (_, Answer::Unavailable) => {
                self.counters.decisions_unavailable += 1;
                unavailable
            }
        }
    }
}

/// Number of bits of a token's sequence number.
const SEQUENCE_BITS: u32 = 44;
