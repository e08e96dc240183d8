//! The decider of a worker, which is behind the supervisor's channel.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pontoon_engine::Instant;
use pontoon_engine::decider::{Answer, Decider, DecisionToken, FlowRequest, TokenState, Verdict};
use pontoon_ipc::Descriptor;
use pontoon_link::Link;
use tracing::debug;

use super::Worker;
use crate::DeciderPlace;
use crate::messages::{DecisionRequest, DecisionVerdict, Report, VerdictKind};

/// Decider of a worker's engine: adds each request to a queue, from which the worker sends it at the end of its turn. Copies
/// share their state, one of which belongs to the engine and one to the worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChannelDecider(Arc<DeciderState>);

#[derive(Debug, Default)]
struct DeciderState {
    is_connected: AtomicBool,
    /// Requests to send. Each is pending in the engine, which limits their number.
    requests: Mutex<Vec<DecisionRequest>>,
}

impl ChannelDecider {
    /// Creates a decider; `connected` is true if a program is connected that decides.
    pub(crate) fn new(connected: bool) -> Self {
        let decider = Self::default();
        decider.set_connected(connected);
        decider
    }

    fn set_connected(&self, connected: bool) {
        self.0.is_connected.store(connected, Ordering::Relaxed);
    }

    fn take(&self) -> Vec<DecisionRequest> {
        let requests = self.0.requests.lock();
        std::mem::take(&mut *requests.unwrap_or_else(PoisonError::into_inner))
    }
}

impl Decider for ChannelDecider {
    fn decide(&mut self, request: &FlowRequest) -> Answer {
        if !self.0.is_connected.load(Ordering::Relaxed) {
            return Answer::Unavailable;
        }
        let requests = self.0.requests.lock();
        let mut requests = requests.unwrap_or_else(PoisonError::into_inner);
        requests.push(request.into());
        Answer::Later
    }
}

/// Returns the decider of a worker's engine, and the worker's copy if a program decides.
pub(crate) fn decider(place: &mut DeciderPlace) -> (Box<dyn Decider>, Option<ChannelDecider>) {
    match place {
        DeciderPlace::Program { connected } => {
            let decider = ChannelDecider::new(*connected);
            (Box::new(decider.clone()), Some(decider))
        }
        DeciderPlace::Process(deciders) => {
            // A program that is not connected denies all flows.
            let absent = || Box::new(ChannelDecider::default()) as Box<dyn Decider>;
            (deciders.pop().unwrap_or_else(absent), None)
        }
    }
}

impl<L: Link> Worker<L> {
    /// Sends the requests of this turn to the supervisor. Requests for which the socket has no room are lost, and their flows
    /// are denied at the deadline.
    #[inline]
    pub(super) fn send_requests(&self) {
        if let Some(decider) = &self.decider {
            let requests = decider.take();
            for some in requests.chunks(DecisionRequest::MOST) {
                if let Err(error) = self.reports.try_send(&Report::Decide(some.to_vec())) {
                    debug!("cannot send requests for decisions to the supervisor: {error}");
                }
            }
        }
    }

    /// Applies the verdicts about this worker's flows.
    pub(super) fn take_verdicts(&mut self, verdicts: Vec<DecisionVerdict>, now: Instant) {
        for DecisionVerdict { token, verdict } in verdicts {
            let token = DecisionToken(token);
            if token.worker() != self.engine.worker() {
                continue;
            }
            let verdict = match verdict {
                VerdictKind::Allow => Verdict::Allow,
                VerdictKind::Deny(denial) => Verdict::Deny(denial),
                VerdictKind::Redirect(to) => Verdict::Redirect(to),
                VerdictKind::Stream(socket) => {
                    if let Some(socket) = own(socket) {
                        self.host.give_stream(socket);
                    }
                    Verdict::RedirectToStream
                }
            };
            let link = &mut self.link.transmitter();
            let state = self
                .engine
                .take_verdict(token, verdict, link, &mut self.host, now);
            if state == TokenState::Unknown {
                debug!("a verdict arrived too late");
            }
            self.host.withdraw_stream();
        }
    }

    /// Records whether a program is connected that decides. Pending flows are denied when it has disconnected.
    pub(super) fn set_decider_connected(&mut self, connected: bool, now: Instant) {
        if let Some(decider) = &self.decider {
            decider.set_connected(connected);
        }
        if !connected {
            self.engine
                .deny_pending(&mut self.link.transmitter(), &mut self.host, now);
        }
    }
}

/// Returns the descriptor, or a duplicate of it if other workers have copies of the message; `None` if it could not be passed.
fn own(socket: Descriptor) -> Option<OwnedFd> {
    let shared = socket.into_inner().ok()?;
    Arc::try_unwrap(shared).or_else(|shared| shared.try_clone()).ok()
}
