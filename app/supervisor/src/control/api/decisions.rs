//! Routes `/v1/decisions`: the connected decider receives requests for decisions, and replies with verdicts.
//!
//! A decider is a client with the streamed response of `GET /v1/decisions`, or the program at the other end of
//! `--decider-fd`. There is one at a time. Requests that it does not read in time, or does not answer, are denied by the
//! engine at their deadline.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::reply;
use pontoon_control::server::{Answer, StreamState};
use pontoon_engine::decider::Denial;
use pontoon_engine::egress::EgressProtocol;
use pontoon_ipc::Descriptor;
use pontoon_worker::Update;
use pontoon_worker::messages::{DecisionRequest, DecisionVerdict, VerdictKind};
use rustix::net::SocketAddrAny;
use serde::Deserialize;

use super::Api;
use queue::RequestQueue;
use target::RedirectTarget;

mod queue;
mod target;

/// First line of the response to `GET /v1/decisions`.
const CONNECTED: &[u8] = b"{\"connected\":true}\n";

/// Limit on the pending requests. It exceeds that of eight workers; the engine is not trusted.
const MAX_PENDING: usize = 8192;

/// Limit on the requests that wait for the decider to read them. Further requests are left to their deadline.
const MAX_QUEUED: usize = 4096;

/// Limit on the connections to Unix sockets that the engine has not received. A compromised engine that does not read would
/// otherwise take the descriptors of this process.
const MAX_UNTAKEN: usize = 1024;

/// Number of bytes from which on no further line is added to a part of the response.
const PART: usize = 8 << 10;

/// Limit on the length of a verdict in bytes.
pub(in crate::control) const MAX_VERDICT: usize = 4096;

/// Status of the response to a verdict for a token that is not pending.
const LATE: u16 = 404;

/// The connected decider, and the requests that it has not answered.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    /// Deadline of a verdict; `None` if no decider is required.
    deadline: Option<Duration>,
    /// Held by the streamed response of the decider, while it is connected.
    stream: std::rc::Weak<()>,
    /// True while the program at the other end of `--decider-fd` is connected.
    descriptor: bool,
    /// The state that the engine knows: true if a decider is connected.
    announced: bool,
    /// Requests that the decider has not read, and the number of those that have expired since the last removal, at most.
    queue: RequestQueue,
    expired: usize,
    pending: BTreeMap<u64, PendingDecision>,
    /// The times at which pending requests expire, in order.
    expiries: VecDeque<(Instant, u64)>,
    /// Connections to Unix sockets that were on the way to the engine when the latest one was added.
    untaken: Vec<Weak<OwnedFd>>,
    pub(super) counts: DeciderCounts,
}

/// Counts of what a decider has done wrong, or too late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DeciderCounts {
    /// Verdicts for tokens that were not pending.
    pub(super) late_verdicts: u64,
    /// Errors of verdicts that the decider did not get, because it has not read earlier ones.
    pub(super) unsent_errors: u64,
}

/// Request that was not answered.
#[derive(Clone, Copy, Debug)]
struct PendingDecision {
    protocol: EgressProtocol,
    /// Destination that the guest has sent; `None` for a client of a published port.
    destination: Option<SocketAddr>,
    expires_at: Instant,
}

/// Body of a verdict.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::control) struct VerdictBody {
    verdict: VerdictName,
    how: Option<DenialName>,
    to: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum VerdictName {
    Allow,
    Deny,
    Redirect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DenialName {
    Reset,
    Unreachable,
    Drop,
}

/// Error of a verdict: status of the response, and the reason.
#[derive(Debug)]
pub(in crate::control) struct VerdictError {
    pub(in crate::control) status: u16,
    pub(in crate::control) why: String,
}

impl VerdictError {
    pub(in crate::control) fn new(status: u16, why: impl Display) -> Self {
        Self {
            status,
            why: why.to_string(),
        }
    }

    /// Returns true if no decision is pending for the token of the verdict.
    pub(in crate::control) const fn is_late(&self) -> bool {
        self.status == LATE
    }
}

/// Handles `GET /v1/decisions`: the client is the decider while it is connected. The first line is sent when all workers
/// have been notified, so that no later flow is denied for want of a decider.
pub(super) fn get(api: &mut Api, _: &HttpRequest, now: Instant) -> Answer<Api> {
    let refuse = |why| Answer::Now(HttpResponse::problem(409, why));
    if api.decisions.deadline.is_none() {
        return refuse("no decider is required (try: --control-decide)");
    }
    if api.decisions.is_connected() {
        return refuse("a decider is connected already");
    }
    // If an earlier decider has disconnected a moment ago, the engine is notified of its end first, and denies what it has not
    // answered.
    api.decisions.announce(&mut api.outbox);
    let connected = Rc::new(());
    api.decisions.stream = Rc::downgrade(&connected);
    api.decisions.announce(&mut api.outbox);
    let mut round = Some(api.confirm_round.ask(&mut api.outbox, now));
    Answer::Stream(Box::new(move |api, part, now| {
        // The value is dropped with the stream.
        let _ = &connected;
        round = match round.map(|number| (number, api.confirm_round.result(number).map(|it| it.is_ok()))) {
            Some((number, None)) => Some(number),
            Some((_, Some(true))) => {
                part.extend(CONNECTED);
                None
            }
            // The engine does not respond.
            Some((_, Some(false))) => Some(api.confirm_round.ask(&mut api.outbox, now)),
            None => None,
        };
        while part.len() < PART
            && let Some(line) = api.decisions.next_line()
        {
            part.extend(line);
        }
        StreamState::Open
    }))
}

/// Handles `POST /v1/decisions/{token}`: a verdict.
pub(super) fn post(api: &mut Api, request: &HttpRequest, _: Instant) -> Answer<Api> {
    let decided = match request.id().parse() {
        _ if request.body.len() > MAX_VERDICT => {
            let why = format_args!("the body exceeds the limit of {MAX_VERDICT} bytes");
            Err(VerdictError::new(413, why))
        }
        Ok(token) => decide(api, token, || request.json()),
        Err(_) => Err(unknown(request.id())),
    };
    Answer::Now(match decided {
        Ok(()) => HttpResponse::document("{}"),
        Err(error) => HttpResponse::problem(error.status, error.why),
    })
}

fn unknown(token: impl Display) -> VerdictError {
    VerdictError::new(LATE, format_args!("no decision is pending for the token {token}"))
}

/// Applies a verdict. A verdict that is not valid leaves the request pending.
pub(in crate::control) fn decide(
    api: &mut Api,
    token: u64,
    body: impl FnOnce() -> Result<VerdictBody, String>,
) -> Result<(), VerdictError> {
    let Some(pending) = api.decisions.pending.get(&token).copied() else {
        api.decisions.counts.late_verdicts += 1;
        return Err(unknown(token));
    };
    let body = body().map_err(|why| VerdictError::new(400, why))?;
    let verdict = body
        .verdict(&pending)
        .map_err(|why| VerdictError::new(400, why))?;
    let (kind, result) = match verdict {
        Decided::Verdict(kind) => (kind, Ok(())),
        Decided::Unix(path) => match api.decisions.connect_unix(&path, &api.own) {
            Ok(socket) => (VerdictKind::Stream(socket), Ok(())),
            Err(error) => {
                let why = format_args!("cannot connect to {}: {error}", path.display());
                let failed = VerdictError::new(409, why);
                (VerdictKind::Deny(Denial::Reset), Err(failed))
            }
        },
    };
    api.decisions.pending.remove(&token);
    let verdict = DecisionVerdict { token, verdict: kind };
    // A verdict with a connection has a message of its own, which may lose its descriptor without effect on other connections.
    let has_room = |verdicts: &Vec<DecisionVerdict>| {
        let latest = [verdicts.last(), Some(&verdict)];
        verdicts.len() < Update::MAX_VERDICTS
            && latest
                .into_iter()
                .flatten()
                .all(|verdict| !matches!(verdict.verdict, VerdictKind::Stream(_)))
    };
    match api.outbox.last_mut() {
        Some(Update::Verdicts(verdicts)) if has_room(verdicts) => verdicts.push(verdict),
        _ => api.outbox.push(Update::Verdicts(vec![verdict])),
    }
    result
}

/// Valid verdict.
enum Decided {
    Verdict(VerdictKind),
    /// Redirect to the Unix socket at this path.
    Unix(std::path::PathBuf),
}

impl VerdictBody {
    /// Checks the verdict for a request.
    fn verdict(self, pending: &PendingDecision) -> Result<Decided, String> {
        let usual = match pending.protocol {
            EgressProtocol::Tcp => DenialName::Reset,
            EgressProtocol::Udp | EgressProtocol::Icmp => DenialName::Unreachable,
        };
        match (self.verdict, self.how, self.to) {
            (VerdictName::Allow, None, None) => Ok(Decided::Verdict(VerdictKind::Allow)),
            (VerdictName::Deny, how, None) => {
                let denial = match how.unwrap_or(usual) {
                    DenialName::Reset => Denial::Reset,
                    DenialName::Unreachable => Denial::Unreachable,
                    DenialName::Drop => Denial::Drop,
                };
                Ok(Decided::Verdict(VerdictKind::Deny(denial)))
            }
            (VerdictName::Redirect, None, Some(to)) => {
                let Some(destination) = pending.destination else {
                    return Err("a client of a published port cannot be redirected".to_owned());
                };
                Ok(match target::parse(&to, pending.protocol, destination)? {
                    RedirectTarget::Address(to) => Decided::Verdict(VerdictKind::Redirect(to)),
                    RedirectTarget::Unix(path) => Decided::Unix(path),
                })
            }
            (VerdictName::Redirect, _, None) => Err("'redirect' needs 'to'".to_owned()),
            _ => Err("'how' belongs to 'deny', and 'to' to 'redirect'".to_owned()),
        }
    }
}

/// Parses the body of a verdict for a flow of each protocol, and for a client.
#[cfg(any(test, fuzzing))]
pub(in crate::control) fn check(bytes: &[u8]) {
    let Ok(body) = serde_json::from_slice::<VerdictBody>(bytes) else {
        return;
    };
    for protocol in [EgressProtocol::Tcp, EgressProtocol::Udp, EgressProtocol::Icmp] {
        for destination in [Some(SocketAddr::from(([192, 0, 2, 1], 80))), None] {
            let pending = PendingDecision {
                protocol,
                destination,
                expires_at: Instant::now(),
            };
            if let Ok(Decided::Unix(path)) = body.clone().verdict(&pending) {
                assert!(path.is_absolute() && protocol == EgressProtocol::Tcp && destination.is_some());
            }
        }
    }
}

impl Decisions {
    /// Requires a decider, whose verdicts have to arrive within `deadline`.
    pub(super) fn require(&mut self, deadline: Duration) {
        self.deadline = Some(deadline);
    }

    /// Returns true if a decider is required, so that the engine may send requests at any time.
    pub(super) fn is_required(&self) -> bool {
        self.deadline.is_some()
    }

    /// Records whether the program at the other end of `--decider-fd` is connected.
    pub(super) fn set_descriptor(&mut self, connected: bool) {
        self.descriptor = connected;
    }

    /// Records that the engine starts with the state that the decider has now.
    pub(super) fn announce_at_start(&mut self) {
        self.announced = self.is_connected();
    }

    fn is_connected(&self) -> bool {
        self.descriptor || self.stream.strong_count() > 0
    }

    /// Connects to a Unix socket, unless too many connections wait until the engine receives them.
    fn connect_unix(&mut self, path: &Path, own: &[SocketAddrAny]) -> io::Result<Descriptor> {
        self.untaken.retain(|socket| socket.strong_count() > 0);
        if self.untaken.len() >= MAX_UNTAKEN {
            return Err(io::Error::other(
                "the engine does not receive the connections before it",
            ));
        }
        let socket = Arc::new(target::connect_unix(path, own)?);
        self.untaken.push(Arc::downgrade(&socket));
        Ok(socket.into())
    }

    /// Returns the next line for the decider.
    pub(super) fn next_line(&mut self) -> Option<Vec<u8>> {
        self.queue.pop(|token| self.pending.contains_key(&token))
    }

    /// Returns the counts of the deciders; `None` if no decider is required.
    pub(super) fn counts(&self) -> Option<DeciderCounts> {
        self.deadline.map(|_| self.counts)
    }

    /// Notifies the engine if a decider has connected or disconnected.
    pub(super) fn announce(&mut self, outbox: &mut Vec<Update>) {
        let connected = self.is_connected();
        if self.announced == connected {
            return;
        }
        self.announced = connected;
        // What an earlier decider has not answered was denied when it disconnected.
        self.forget();
        outbox.push(Update::DeciderConnected(connected));
        match connected {
            true => tracing::info!("a decider is connected"),
            false => tracing::warn!("the decider has disconnected; new flows are denied"),
        }
    }

    /// Forgets all requests, because the engine that has sent them has exited.
    pub(super) fn forget(&mut self) {
        self.queue.clear();
        self.pending.clear();
        self.expiries.clear();
    }

    /// Adds requests of the engine; returns true if the decider receives any.
    pub(super) fn take_requests(&mut self, requests: Vec<DecisionRequest>, now: Instant) -> bool {
        let Some(deadline) = self.deadline.filter(|_| self.is_connected()) else {
            return false;
        };
        self.expire(now);
        let mut any = false;
        let expires_at = now + deadline;
        for request in requests {
            if self.pending.contains_key(&request.token) {
                tracing::debug!("a request for a decision has the token of another one");
                continue;
            }
            if self.queue.len() >= MAX_QUEUED || self.pending.len() >= MAX_PENDING {
                tracing::debug!("a request for a decision was dropped: the decider does not read");
                continue;
            }
            let pending = PendingDecision {
                protocol: request.protocol,
                destination: request.destination,
                expires_at,
            };
            self.pending.insert(request.token, pending);
            self.expiries.push_back((expires_at, request.token));
            self.queue.push(request.published, request.token, line(request));
            any = true;
        }
        any
    }

    /// Removes the requests whose deadline has passed, and which the engine has denied. A decider that has not read them does
    /// not get them.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(expiry @ (at, token)) = self.expiries.front() {
            let is_pending = is_of(&self.pending, expiry);
            if is_pending && *at > now {
                break;
            }
            if is_pending {
                self.pending.remove(token);
                self.expired += 1;
            }
            self.expiries.pop_front();
        }
        // The removal looks at all requests, so that it is made for many at once.
        if self.expired >= MAX_QUEUED / 8 {
            self.expired = 0;
            self.queue.retain(|token| self.pending.contains_key(&token));
        }
        // Without this, the queue would grow with the rate of verdicts.
        if self.expiries.len() > 2 * MAX_PENDING {
            self.expiries.retain(|expiry| is_of(&self.pending, expiry));
        }
    }
}

/// Returns true if an expiry is that of a pending request. A compromised engine may use a token again.
fn is_of(pending: &BTreeMap<u64, PendingDecision>, (at, token): &(Instant, u64)) -> bool {
    pending
        .get(token)
        .is_some_and(|request| request.expires_at == *at)
}

/// Returns the line of a request.
fn line(request: DecisionRequest) -> Vec<u8> {
    let line = reply::Decision {
        token: request.token,
        protocol: request.protocol.to_string(),
        direction: match request.destination {
            Some(_) => "out".to_owned(),
            None => "in".to_owned(),
        },
        guest: request.guest,
        destination: request.destination,
        published: request.published,
        remote: request.remote,
        rule: request.rule,
        deadline_ms: request.deadline_ms,
    };
    let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Returns true if no flow can be redirected to an address.
fn is_no_host(address: IpAddr) -> bool {
    address.is_unspecified() || address.is_multicast()
}

#[cfg(test)]
mod tests;
