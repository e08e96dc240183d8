//! The control socket: HTTP with JSON over a Unix socket, as in `curl --unix-socket PATH http://pontoon/v1/stats`.
//!
//! It is served by the supervisor's one loop and never blocks it: a client that says half a request and then nothing
//! has a deadline and costs a descriptor until then. No packet waits for any of this, as packets are the engine's. What
//! only the engine knows is asked of its workers in rounds, one at a time; all clients that wait share a round's answer.
//!
//! A [`server`] knows nothing of what it serves. What can be asked of a [`guest`] is a list of routes, each in the file of
//! its resource. Metrics alone may be had over TCP, too.

mod connection;
mod guest;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
pub(crate) mod hosts;
pub(crate) mod http;
pub(crate) mod listener;
pub(crate) mod metrics_text;
pub mod reply;
pub(crate) mod server;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use pontoon_engine::egress::Rule;
use pontoon_runtime::Update;
use pontoon_runtime::messages::Report;
use rustix::event::PollFd;
use tracing::level_filters::LevelFilter;

use crate::capture::Capture;
use crate::error::Error;
use crate::options::Metrics;
use crate::pid_namespace::PidNamespace;
use crate::publish::Ports;
use guest::Api;
use hosts::Hosts;
use listener::Listener;
use server::Server;

/// A guest's control socket, its clients, and what they may ask.
pub(crate) struct Control {
    /// The control socket, and where metrics alone can be had.
    servers: Vec<Server<Api>>,
    api: Api,
}

/// What is served.
pub(crate) struct Served {
    /// The rules at the start.
    pub(crate) rules: Vec<Rule>,
    /// Whether there is a DNS forwarder.
    pub(crate) forwarder: bool,
    /// Workers of the engine.
    pub(crate) workers: u8,
    /// What is published at the start.
    pub(crate) ports: Ports,
    /// Sets how much this process says.
    pub(crate) set_log_level: fn(LevelFilter),
}

/// Clients at one time. One more takes the place of the one that has been idle for longest, or takes longest.
const CLIENTS: usize = 16;

impl Control {
    /// Listens at `path`, where only this user may connect, and for whoever wants `metrics`.
    ///
    /// # Errors
    /// Somebody else listens there, or that cannot be had.
    pub(crate) fn open(
        path: Option<&Path>,
        metrics: Option<&Metrics>,
        served: Served,
    ) -> Result<Self, Error> {
        let mut servers = Vec::new();
        if let Some(path) = path {
            servers.push(Server::new(Listener::open(path)?, guest::ROUTES, Hosts::Any));
        }
        if let Some(metrics) = metrics {
            let hosts = Hosts::Named(metrics.hosts.clone());
            servers.push(Server::new(Listener::tcp(metrics.at)?, guest::METRICS, hosts));
        }
        Ok(Self {
            servers,
            api: Api::new(served),
        })
    }

    /// Keeps the control socket from who is in a PID namespace: the guest, which may have the same user and files.
    pub(crate) fn refuse(&mut self, guest: Option<PidNamespace>) {
        let mut listeners = self.servers.iter_mut().map(Server::listener);
        if let Some(listener) = listeners.find(|listener| listener.is_file()) {
            listener.refuse(guest);
        }
    }

    /// What to poll.
    pub(crate) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.servers.iter().flat_map(Server::poll_fds)
    }

    /// When to call [`Self::serve`] though nothing is ready.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let servers = self.servers.iter().filter_map(Server::deadline);
        servers.chain(self.api.deadline()).min()
    }

    /// Whether the workers are to be heard.
    pub(crate) fn is_asking(&self) -> bool {
        self.api.is_asking()
    }

    /// Begins a capture once [`Self::serve`] is called.
    ///
    /// # Errors
    /// Its file cannot be had.
    pub(crate) fn capture(&mut self, capture: &Capture, now: Instant) -> Result<(), Error> {
        self.api.capture(capture, now)
    }

    /// Does what can be done now. `tell` passes a word on to the engine.
    pub(crate) fn serve(&mut self, tell: &mut dyn FnMut(Update), now: Instant) {
        self.api.expire(now);
        for server in &mut self.servers {
            server.serve(&mut self.api, now);
        }
        self.api.go_on(now);
        for update in self.api.take_outbox() {
            tell(update);
        }
    }

    /// Another engine has taken the place of the one that was asked: it answers instead.
    pub(crate) fn ask_again(&mut self, tell: &mut dyn FnMut(Update), now: Instant) {
        self.api.ask_again(now);
        self.serve(tell, now);
    }

    /// A worker has answered.
    pub(crate) fn hear(&mut self, report: Report, tell: &mut dyn FnMut(Update), now: Instant) {
        if self.api.hear(report, now) {
            self.serve(tell, now);
        }
        for update in self.api.take_outbox() {
            tell(update);
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

/// How long a client may take to say a request, and to take an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the workers may take to say what they know.
const ENGINE: Duration = Duration::from_secs(1);

/// How long to leave the listener alone that had no descriptor for a client.
const REST: Duration = Duration::from_secs(1);

/// How long a client may keep a connection without a request.
const IDLE: Duration = Duration::from_secs(60);
