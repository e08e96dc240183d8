//! Decisions of the program about new flows.

use std::fmt;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pontoon_engine::decider::{self, Answer, Decider};
use pontoon_engine::egress::EgressProtocol;
use pontoon_worker::messages::VerdictKind;
use pontoon_worker::{DeciderPlace, DeciderSetup};

use crate::queue::{Queue, RequestQueue};

/// Time within which a verdict has to arrive by default: 2 s.
pub const DECISION_DEADLINE: Duration = decider::DEADLINE;

/// Duration of a call of a decider from which on it is counted in [`Stats::slow_decisions`](crate::Stats::slow_decisions).
pub const SLOW_DECISION: Duration = Duration::from_millis(10);

/// Protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP or ICMPv6 echo.
    Icmp,
}

/// Number of a request, unique among the pending requests of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DecisionToken(pub(crate) u64);

/// Request for a decision about a new flow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowRequest {
    /// Number to which a later verdict refers.
    pub token: DecisionToken,
    /// Protocol of the flow.
    pub protocol: Protocol,
    /// Address and port of the guest's end. For an echo request, the id takes the port's place.
    pub guest: SocketAddr,
    /// Address and port of the other end on the host's side: the translated destination, or the client of a published port.
    /// The port of an echo request is 0.
    pub remote: SocketAddr,
    /// Destination as the guest has sent it; `None` for a client of a published port.
    pub destination: Option<SocketAddr>,
    /// Host address and port of the published port to which a client has connected; `None` for a flow that the guest opens.
    pub published: Option<SocketAddr>,
    /// The egress rule that allows the flow, if there are allow rules.
    pub rule: Option<String>,
    /// Time within which the verdict has to arrive.
    pub deadline: Duration,
}

/// Decision about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The flow is opened as if there were no decider.
    Allow,
    /// The flow is refused.
    Deny(Denial),
    /// The flow of the guest is opened to this address. The port is ignored for an echo request.
    Redirect(SocketAddr),
}

/// Way in which a flow is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Denial {
    /// TCP: a reset. UDP: ICMP port unreachable. Echo: as [`Self::Unreachable`].
    Reset,
    /// ICMP "administratively prohibited", for TCP with a reset behind it.
    Unreachable,
    /// No answer. A client of a published TCP port is reset.
    Drop,
}

impl DecisionToken {
    /// Returns the number, for a foreign-function interface or a log.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Returns the token with this number.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        })
    }
}

impl Protocol {
    pub(crate) fn of(protocol: EgressProtocol) -> Self {
        match protocol {
            EgressProtocol::Tcp => Self::Tcp,
            EgressProtocol::Udp => Self::Udp,
            EgressProtocol::Icmp => Self::Icmp,
        }
    }
}

impl Denial {
    fn of_engine(self) -> decider::Denial {
        match self {
            Self::Reset => decider::Denial::Reset,
            Self::Unreachable => decider::Denial::Unreachable,
            Self::Drop => decider::Denial::Drop,
        }
    }
}

impl Verdict {
    fn of_engine(self) -> decider::Verdict {
        match self {
            Self::Allow => decider::Verdict::Allow,
            Self::Deny(denial) => decider::Verdict::Deny(denial.of_engine()),
            Self::Redirect(to) => decider::Verdict::Redirect(to),
        }
    }

    /// Returns the verdict in a message to the engine.
    pub(crate) fn message(self) -> VerdictKind {
        match self {
            Self::Allow => VerdictKind::Allow,
            Self::Deny(denial) => VerdictKind::Deny(denial.of_engine()),
            Self::Redirect(SocketAddr::V6(mut to)) => {
                // The text of an address, in which the engine receives it, has no flow label.
                to.set_flowinfo(0);
                VerdictKind::Redirect(to.into())
            }
            Self::Redirect(to) => VerdictKind::Redirect(to),
        }
    }
}

impl FlowRequest {
    fn of(request: &decider::FlowRequest) -> Self {
        let (destination, published) = match request.direction {
            decider::Direction::Out { destination } => (Some(destination), None),
            decider::Direction::In { published } => (None, Some(published)),
        };
        Self {
            token: DecisionToken(request.token.0),
            protocol: Protocol::of(request.protocol),
            guest: request.guest,
            remote: request.remote,
            destination,
            published,
            rule: request.rule.clone(),
            deadline: request.deadline,
        }
    }
}

/// Function of the program that decides, or `None` if it decides later.
type DeciderFunction = dyn Fn(&FlowRequest) -> Option<Verdict> + Send + Sync;

/// Decider of a network, which all of its workers share.
#[derive(Clone)]
pub(crate) struct FlowDecider {
    place: Place,
    pub(crate) counts: Arc<DeciderCounts>,
}

#[derive(Clone)]
enum Place {
    Function(Arc<DeciderFunction>),
    Queue(Arc<Queue<FlowRequest>>),
}

/// Faults of a decider.
#[derive(Debug, Default)]
pub(crate) struct DeciderCounts {
    pub(crate) panics: AtomicU64,
    pub(crate) slow: AtomicU64,
}

impl FlowDecider {
    pub(crate) fn function(decide: impl Fn(&FlowRequest) -> Option<Verdict> + Send + Sync + 'static) -> Self {
        Self::at(Place::Function(Arc::new(decide)))
    }

    pub(crate) fn queue(queue: &RequestQueue) -> Self {
        Self::at(Place::Queue(Arc::clone(&queue.0)))
    }

    fn at(place: Place) -> Self {
        Self {
            place,
            counts: Arc::default(),
        }
    }

    pub(crate) fn setup(&self, deadline: Duration, workers: u8) -> DeciderSetup {
        let clone = || Box::new(self.clone()) as Box<dyn Decider>;
        let clones = std::iter::repeat_with(clone).take(workers.into()).collect();
        DeciderSetup {
            deadline,
            decider: DeciderPlace::Process(clones),
        }
    }

    /// Calls the function of the program. A panic denies the flow.
    fn call(&self, decide: &DeciderFunction, request: &decider::FlowRequest) -> Answer {
        let asked = FlowRequest::of(request);
        let begin = Instant::now();
        // The function is `Fn`: its state is behind a type that it has chosen for being shared, such as a mutex.
        let decided = catch_unwind(AssertUnwindSafe(|| decide(&asked)));
        let took = begin.elapsed();
        if took >= SLOW_DECISION {
            self.counts.slow.fetch_add(1, Ordering::Relaxed);
            if cfg!(debug_assertions) {
                tracing::warn!("a decider took {took:?}; meanwhile no packet of its network was processed");
            }
        }
        match decided {
            Ok(Some(verdict)) => Answer::Now(verdict.of_engine()),
            Ok(None) => Answer::Later,
            Err(_) => {
                self.counts.panics.fetch_add(1, Ordering::Relaxed);
                Answer::Now(decider::Verdict::denial(request.protocol))
            }
        }
    }
}

impl Decider for FlowDecider {
    fn decide(&mut self, request: &decider::FlowRequest) -> Answer {
        match &self.place {
            Place::Function(decide) => self.call(&**decide, request),
            Place::Queue(queue) => match queue.push(FlowRequest::of(request)) {
                Ok(()) => Answer::Later,
                Err(_) => Answer::Unavailable,
            },
        }
    }
}

impl fmt::Debug for FlowDecider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowDecider")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}
