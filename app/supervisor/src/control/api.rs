//! HTTP API of a guest's network, with one file for each resource.

pub(super) mod auto;
pub(super) mod capture;
mod change_request;
mod confirm_round;
pub(super) mod decisions;
mod document;
pub(super) mod end_flows;
mod events;
mod flow_dump;
mod flows;
pub(super) mod guest_forward;
mod log_level;
mod metrics;
pub(super) mod pesto;
pub(super) mod policy;
pub(super) mod publish;
pub(super) mod slirp;
mod stats;

use std::rc::Rc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use pontoon_control::http::HttpResponse;
use pontoon_control::reply::Level;
use pontoon_control::role::Role;
use pontoon_control::server::{Answer, Route};
use pontoon_engine::config::PublishedPath;
use pontoon_process::error::Error;
use pontoon_worker::Update;
use pontoon_worker::messages::{Confirmation, Report};
use rustix::net::SocketAddrAny;
use tracing::level_filters::LevelFilter;

use super::ControlSetup;
use crate::capture::Capture;
use crate::events::Events;
use crate::forward::Forwards;
use crate::publish::{Ports, Publish};
use crate::statistics::Statistics;
use auto::{AutoFinder, GuestListeners};
use capture::Captures;
use confirm_round::{ConfirmRound, Expired};
use decisions::Decisions;
use flow_dump::FlowDump;
use pesto::PestoRules;
use publish::UnconfirmedChange;
use slirp::SlirpPorts;

#[cfg(test)]
pub(super) use document::DOCUMENT;

/// State of the API, and updates that are to be sent to the engine.
pub(super) struct Api {
    statistics: Statistics,
    forwarder: bool,
    ports: Ports,
    /// Published ports that clients of slirp4netns' protocol have added.
    slirp_ports: SlirpPorts,
    pesto: PestoRules,
    forwards: Forwards,
    auto: AutoFinder,
    confirm_round: ConfirmRound,
    /// Changes of published ports that not all workers have confirmed. Their number is limited, because further changes are
    /// refused once a round has expired.
    unconfirmed_ports: Vec<Rc<UnconfirmedChange>>,
    flow_dump: FlowDump,
    /// Number of the last request to end flows.
    last_end: u64,
    captures: Captures,
    events: Option<Events>,
    decisions: Decisions,
    /// Addresses of the API's servers, to which no flow can be redirected.
    own: Vec<SocketAddrAny>,
    level: Level,
    set_log_level: fn(LevelFilter),
    /// Updates to be sent to the engine.
    outbox: Vec<Update>,
}

/// All routes, with the role that each needs: the requests that change something are those of the socket of `--control` only.
pub(super) const ROUTES: &[Route<Api>] = &[
    Route::new("GET", "/v1/stats", Role::Read, stats::get),
    Route::new("GET", "/v1/policy", Role::Read, policy::get),
    Route::new("PUT", "/v1/policy", Role::Operate, policy::put),
    Route::new("GET", "/v1/publish", Role::Read, publish::get),
    Route::new("POST", "/v1/publish", Role::Operate, publish::post),
    Route::new("GET", "/v1/guest-forward", Role::Read, guest_forward::get),
    Route::new("POST", "/v1/guest-forward", Role::Operate, guest_forward::post),
    Route::new("GET", "/v1/flows", Role::Read, flows::get),
    Route::new("DELETE", "/v1/flows/{id}", Role::Operate, end_flows::delete),
    Route::new("POST", "/v1/flows/kill", Role::Operate, end_flows::post),
    Route::new("GET", "/v1/events", Role::Read, events::get),
    Route::new("GET", "/v1/capture", Role::Read, capture::get),
    Route::new("POST", "/v1/capture", Role::Operate, capture::post),
    Route::new("DELETE", "/v1/capture", Role::Operate, capture::delete),
    Route::new("GET", "/v1/decisions", Role::Decide, decisions::get),
    Route::new("POST", "/v1/decisions/{id}", Role::Decide, decisions::post),
    Route::new("GET", "/v1/log-level", Role::Read, log_level::get),
    Route::new("PUT", "/v1/log-level", Role::Operate, log_level::put),
    Route::new("GET", "/metrics", Role::Measure, metrics::get),
    Route::new("GET", "/v1/openapi.json", Role::Read, document::get),
];

/// Prefix of the names of the sandbox's layers.
const LAYER: &str = "sandbox_layer_";

impl Api {
    pub(super) fn new(served: ControlSetup) -> Self {
        let workers = served.statistics.workers();
        Self {
            statistics: served.statistics,
            forwarder: served.forwarder,
            ports: served.ports,
            slirp_ports: SlirpPorts::default(),
            pesto: PestoRules::default(),
            forwards: served.forwards,
            auto: AutoFinder::default(),
            confirm_round: ConfirmRound::new(workers),
            unconfirmed_ports: Vec::new(),
            flow_dump: FlowDump::new(workers),
            last_end: 0,
            captures: Captures::default(),
            events: served.events,
            decisions: Decisions::default(),
            own: Vec::new(),
            level: log_level::now(),
            set_log_level: served.set_log_level,
            outbox: Vec::new(),
        }
    }

    /// Begins a capture.
    ///
    /// # Errors
    /// The file of the capture cannot be created.
    pub(super) fn capture(&mut self, capture: &Capture, now: Instant) -> Result<(), Error> {
        self.captures.start(capture, &mut self.outbox, now)
    }

    /// Returns true if the supervisor waits for a report of the workers.
    pub(super) fn is_asking(&self) -> bool {
        self.deadline().is_some() || self.captures.is_awaited() || self.decisions.is_required()
    }

    /// Returns the time at which the earliest pending query expires.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.confirm_round
            .deadline()
            .into_iter()
            .chain(self.flow_dump.deadline())
            .chain(self.captures.deadline())
            .min()
    }

    /// Ends queries whose timeout has expired.
    pub(super) fn expire(&mut self, now: Instant) {
        self.confirm_round.expire(now);
        self.flow_dump.expire(now);
        self.captures.expire(now);
        self.decisions.expire(now);
    }

    /// Handles a report of a worker; returns true if a response to a client may be ready.
    pub(super) fn take_report(&mut self, report: Report, now: Instant) -> bool {
        match report {
            Report::Confirmed(confirmation) => {
                let ends = self.confirm_round.take(confirmation);
                if ends {
                    publish::end_unconfirmed(self);
                }
                ends
            }
            Report::Flows(flows) => self.flow_dump.take(flows, &mut self.outbox, now),
            Report::Captured(captured) => self.captures.take_report(captured, &mut self.outbox),
            Report::Decide(requests) => self.decisions.take_requests(requests, now),
            Report::Ready | Report::Failed(_) => false,
        }
    }

    /// Sets the TCP ports of the host on which the API's servers listen.
    pub(super) fn set_own(&mut self, ports: impl Iterator<Item = u16>) {
        self.auto.set_own(ports);
    }

    /// Adds the address of one of the API's servers.
    pub(super) fn add_own(&mut self, address: Option<SocketAddrAny>) {
        self.own.extend(address);
    }

    /// Sets the source of the guest's listening ports.
    pub(super) fn set_guest_listeners(&mut self, guest: GuestListeners) {
        self.auto.set_guest(guest);
    }

    /// Sets the option values of the published ports, whose rules clients of pesto's protocol receive, and the path of the data of
    /// clients on this host for the ports of new rules.
    pub(super) fn begin_pesto(&mut self, values: &[Publish], path: PublishedPath) {
        self.pesto.begin(values, &self.ports, path);
    }

    /// Sets the host's own addresses, which no target address of a published port may be.
    pub(super) fn set_owned(&mut self, owned: &[IpNet]) {
        self.ports.set_owned(owned);
    }

    /// Begins queries that were scheduled after the ones that have ended, and scans the listening sockets if a scan is
    /// due.
    pub(super) fn go_on(&mut self, now: Instant) {
        self.scan(now);
        self.confirm_round.go_on(&mut self.outbox, now);
        self.flow_dump.go_on(&mut self.outbox, now);
        self.decisions.announce(&mut self.outbox);
    }

    /// Requires a decider, whose verdicts have to arrive within `deadline`. `connected` is true if there is one at the other
    /// end of `--decider-fd`.
    pub(super) fn require_decider(&mut self, deadline: Duration, connected: bool) {
        self.decisions.require(deadline);
        self.decisions.set_descriptor(connected);
        // The engine starts with this state.
        self.decisions.announce_at_start();
    }

    /// Records that the program at the other end of `--decider-fd` has disconnected.
    pub(super) fn end_decider(&mut self) {
        self.decisions.set_descriptor(false);
    }

    /// Returns the next request for the decider at the other end of `--decider-fd`.
    pub(super) fn next_decision(&mut self) -> Option<Vec<u8>> {
        self.decisions.next_line()
    }

    /// Counts an error of a verdict that the decider at the other end of `--decider-fd` does not get, because it has not read
    /// earlier ones.
    pub(super) fn count_unsent_error(&mut self) {
        self.decisions.counts.unsent_errors += 1;
    }

    /// Sends pending queries again and continues the capture, after a restart of the engine.
    pub(super) fn ask_again(&mut self, now: Instant) {
        // The start of the capture is sent first: a client that has received a response can rely on every worker capturing.
        self.captures.go_on(&mut self.outbox, now);
        self.decisions.forget();
        self.confirm_round.restart(&mut self.outbox);
        self.flow_dump.restart(&mut self.outbox);
    }

    /// Removes and returns the updates to be sent to the engine.
    pub(super) fn take_outbox(&mut self) -> Vec<Update> {
        std::mem::take(&mut self.outbox)
    }

    /// Returns a response that is sent when all workers have applied the updates, and have published their statistics.
    fn confirm(
        &mut self,
        now: Instant,
        render: impl FnOnce(&mut Self, Vec<Confirmation>) -> HttpResponse + 'static,
    ) -> Answer<Self> {
        self.end_round(now, |api, confirmations| match confirmations {
            Ok(confirmations) => render(api, confirmations),
            Err(Expired) => unconfirmed(),
        })
    }

    /// Refuses a change if the engine has not confirmed an earlier one, because updates that the engine does not read stay
    /// in memory. The engine is queried again, so that changes are accepted once it replies.
    fn refuse_unread(&mut self, now: Instant) -> Option<Answer<Self>> {
        let unread = self.confirm_round.has_expired();
        unread.then(|| self.end_round(now, |_, _| HttpResponse::problem(503, UNREAD)))
    }

    /// Returns a response that is sent when all workers have applied the updates, or the timeout has expired.
    fn end_round(
        &mut self,
        now: Instant,
        render: impl FnOnce(&mut Self, Result<Vec<Confirmation>, Expired>) -> HttpResponse + 'static,
    ) -> Answer<Self> {
        let round = self.confirm_round.ask(&mut self.outbox, now);
        let mut render = Some(render);
        Answer::Later(Box::new(move |api| {
            let confirmations = api.confirm_round.result(round)?.map(<[_]>::to_vec);
            let render = render.take()?;
            Some(render(api, confirmations))
        }))
    }
}

/// Returns the response to a change that was sent to the engine and not confirmed before the timeout.
fn unconfirmed() -> HttpResponse {
    HttpResponse::problem(503, UNCONFIRMED)
}

/// Error text for a change that was not made, because the engine has not confirmed an earlier one.
const UNREAD: &str = "the engine has not replied; nothing was changed";

/// Error text for a change that was sent to the engine and not confirmed before the timeout.
const UNCONFIRMED: &str = "the engine has not confirmed the change yet; it takes effect when it does";

/// Returns the response to a query for flows that the engine has not answered in time.
fn no_reply() -> HttpResponse {
    HttpResponse::problem(503, "the engine does not respond")
}
