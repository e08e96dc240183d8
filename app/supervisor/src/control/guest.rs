//! What can be asked of a guest's network, and the answers: one file for each resource.

pub(super) mod capture;
mod document;
mod flow_dump;
mod flows;
mod log_level;
mod metrics;
pub(super) mod policy;
pub(super) mod publish;
mod stats;
mod stats_query;

use std::time::Instant;

use pontoon_engine::egress::Rule;
use pontoon_runtime::Update;
use pontoon_runtime::messages::{Report, Stats};
use tracing::level_filters::LevelFilter;

use super::Served;
use super::http::Response;
use super::reply::Level;
use super::server::{Answer, Route};
use crate::capture::Capture;
use crate::error::Error;
use crate::publish::Ports;
use capture::Captures;
use flow_dump::Census;
use stats_query::{Round, Silent};

#[cfg(test)]
pub(super) use document::DOCUMENT;

/// What is known here, and what the engine is to be asked and told.
pub(super) struct Api {
    rules: Vec<Rule>,
    forwarder: bool,
    ports: Ports,
    round: Round,
    census: Census,
    captures: Captures,
    level: Level,
    set_log_level: fn(LevelFilter),
    /// For the engine.
    outbox: Vec<Update>,
}

/// All that can be asked.
pub(super) const ROUTES: &[Route<Api>] = &[
    Route {
        method: "GET",
        path: "/v1/stats",
        act: stats::get,
    },
    Route {
        method: "GET",
        path: "/v1/policy",
        act: policy::get,
    },
    Route {
        method: "PUT",
        path: "/v1/policy",
        act: policy::put,
    },
    Route {
        method: "GET",
        path: "/v1/publish",
        act: publish::get,
    },
    Route {
        method: "POST",
        path: "/v1/publish",
        act: publish::post,
    },
    Route {
        method: "GET",
        path: "/v1/flows",
        act: flows::get,
    },
    Route {
        method: "GET",
        path: "/v1/capture",
        act: capture::get,
    },
    Route {
        method: "POST",
        path: "/v1/capture",
        act: capture::post,
    },
    Route {
        method: "DELETE",
        path: "/v1/capture",
        act: capture::delete,
    },
    Route {
        method: "GET",
        path: "/v1/log-level",
        act: log_level::get,
    },
    Route {
        method: "PUT",
        path: "/v1/log-level",
        act: log_level::put,
    },
    Route {
        method: "GET",
        path: "/metrics",
        act: metrics::get,
    },
    Route {
        method: "GET",
        path: "/v1/openapi.json",
        act: document::get,
    },
];

/// What anybody may ask who reaches the address of `--metrics`.
pub(super) const METRICS: &[Route<Api>] = &[Route {
    method: "GET",
    path: "/metrics",
    act: metrics::get,
}];

impl Api {
    pub(super) fn new(served: Served) -> Self {
        Self {
            rules: served.rules,
            forwarder: served.forwarder,
            ports: served.ports,
            round: Round::new(served.workers),
            census: Census::new(served.workers),
            captures: Captures::default(),
            level: log_level::now(),
            set_log_level: served.set_log_level,
            outbox: Vec::new(),
        }
    }

    /// Begins a capture.
    ///
    /// # Errors
    /// Its file cannot be had.
    pub(super) fn capture(&mut self, capture: &Capture, now: Instant) -> Result<(), Error> {
        self.captures.start(capture, &mut self.outbox, now)
    }

    /// Whether the workers may have something to say.
    pub(super) fn is_asking(&self) -> bool {
        self.deadline().is_some() || self.captures.is_awaited()
    }

    /// Until when the workers have time.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.round
            .deadline()
            .into_iter()
            .chain(self.census.deadline())
            .chain(self.captures.deadline())
            .min()
    }

    /// Gives up on workers whose time is over.
    pub(super) fn expire(&mut self, now: Instant) {
        self.round.expire(now);
        self.census.expire(now);
        self.captures.expire(now);
    }

    /// Notes a worker's answer; true if somebody's answer may be ready.
    pub(super) fn hear(&mut self, report: Report, now: Instant) -> bool {
        match report {
            Report::Stats(stats) => self.round.hear(stats),
            Report::Flows(flows) => self.census.hear(flows, &mut self.outbox, now),
            Report::Captured(captured) => self.captures.hear(captured, &mut self.outbox),
            Report::Ready => false,
        }
    }

    /// Asks what clients wait for that could not be asked before.
    pub(super) fn go_on(&mut self, now: Instant) {
        self.round.go_on(&mut self.outbox, now);
        self.census.go_on(&mut self.outbox, now);
    }

    /// Another engine is to answer what was asked, and to go on with what was begun.
    pub(super) fn ask_again(&mut self, now: Instant) {
        // First: who hears an answer finds every worker at it.
        self.captures.go_on(&mut self.outbox, now);
        self.round.restart(&mut self.outbox);
        self.census.restart(&mut self.outbox);
    }

    /// What the engine is to be told.
    pub(super) fn take_outbox(&mut self) -> Vec<Update> {
        std::mem::take(&mut self.outbox)
    }

    /// An answer made of what the workers know, all of which comes after what the engine was told before.
    fn report(
        &mut self,
        now: Instant,
        render: impl FnOnce(&mut Self, Vec<Stats>) -> Response + 'static,
    ) -> Answer<Self> {
        self.report_or(now, silent, render)
    }

    /// The same, to who has changed something.
    fn confirm(
        &mut self,
        now: Instant,
        render: impl FnOnce(&mut Self, Vec<Stats>) -> Response + 'static,
    ) -> Answer<Self> {
        self.report_or(now, unconfirmed, render)
    }

    fn report_or(
        &mut self,
        now: Instant,
        silent: fn() -> Response,
        render: impl FnOnce(&mut Self, Vec<Stats>) -> Response + 'static,
    ) -> Answer<Self> {
        let round = self.round.ask(&mut self.outbox, now);
        let mut render = Some(render);
        Answer::Later(Box::new(move |api| {
            let said = api.round.result(round)?;
            let render = render.take()?;
            Some(match said {
                Ok(said) => render(api, said),
                Err(Silent) => silent(),
            })
        }))
    }
}

/// What a change is answered that has been told, and will be heard.
fn unconfirmed() -> Response {
    let what = "the engine has not confirmed the change yet; it holds once it does";
    Response::problem(503, what)
}

fn silent() -> Response {
    Response::problem(503, "the engine does not answer")
}
