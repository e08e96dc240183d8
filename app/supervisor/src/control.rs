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

use pontoon_engine::egress::EgressRule;
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

/// The control socket and metrics address of a guest, their clients, and the API.
pub(crate) struct Control {
    /// The control socket, and the metrics address.
    servers: Vec<Server<Api>>,
    api: Api,
}

/// Initial state of the API.
pub(crate) struct Served {
    /// The rules at the start.
    pub(crate) rules: Vec<EgressRule>,
    /// True if there is a DNS forwarder.
    pub(crate) forwarder: bool,
    /// Workers of the engine.
    pub(crate) workers: u8,
    /// Ports that are published at the start.
    pub(crate) ports: Ports,
    /// Sets the log level of this process.
    pub(crate) set_log_level: fn(LevelFilter),
}

/// Maximum number of clients of a server. A further client replaces the one that has been idle for longest, or whose request
/// takes longest.
const CLIENTS: usize = 16;

impl Control {
    /// Listens at `path`, where only this user may connect, and at the address of `metrics`.
    ///
    /// # Errors
    /// The address is in use, or a socket cannot be created.
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

    /// Refuses clients of the control socket in a PID namespace: the guest, which may have the same user and files.
    pub(crate) fn refuse(&mut self, guest: Option<PidNamespace>) {
        let mut listeners = self.servers.iter_mut().map(Server::listener);
        if let Some(listener) = listeners.find(|listener| listener.is_file()) {
            listener.refuse(guest);
        }
    }

    /// Returns the descriptors to poll.
    pub(crate) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.servers.iter().flat_map(Server::poll_fds)
    }

    /// Returns the time to call [`Self::serve`] if no descriptor is ready before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let servers = self.servers.iter().filter_map(Server::deadline);
        servers.chain(self.api.deadline()).min()
    }

    /// Returns true if a report of the workers is awaited.
    pub(crate) fn is_asking(&self) -> bool {
        self.api.is_asking()
    }

    /// Begins a capture at the next [`Self::serve`].
    ///
    /// # Errors
    /// Its file cannot be created.
    pub(crate) fn capture(&mut self, capture: &Capture, now: Instant) -> Result<(), Error> {
        self.api.capture(capture, now)
    }

    /// Reads requests and writes responses. `send` sends an update to the engine.
    pub(crate) fn serve(&mut self, send: &mut dyn FnMut(Update), now: Instant) {
        self.api.expire(now);
        for server in &mut self.servers {
            server.serve(&mut self.api, now);
        }
        self.api.go_on(now);
        for update in self.api.take_outbox() {
            send(update);
        }
    }

    /// Repeats pending queries for a restarted engine.
    pub(crate) fn ask_again(&mut self, send: &mut dyn FnMut(Update), now: Instant) {
        self.api.ask_again(now);
        self.serve(send, now);
    }

    /// Processes a report of a worker.
    pub(crate) fn take_report(&mut self, report: Report, send: &mut dyn FnMut(Update), now: Instant) {
        if self.api.take_report(report, now) {
            self.serve(send, now);
        }
        for update in self.api.take_outbox() {
            send(update);
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

/// Timeout for a client to send a request, and to read the response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for reports of the workers.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Delay until the next accept after one failed for want of a descriptor.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// Timeout of a connection without a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
