//! The control socket: HTTP with JSON over a Unix socket, as in `curl --unix-socket PATH http://pontoon/v1/stats`.
//!
//! It is served by the supervisor's one loop and never blocks it: a client that says half a request and then nothing
//! has a deadline and costs a descriptor until then. No packet waits for any of this, as packets are the engine's. What
//! only the engine knows is asked of its workers in rounds, one at a time; all clients that wait share a round's answer.

mod api;
mod connection;
mod http;
mod listener;
mod metrics;
pub mod reply;
mod round;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use pontoon_engine::egress::Rule;
use pontoon_runtime::Update;
use pontoon_runtime::messages::Stats;
use rustix::event::PollFd;

use crate::error::Error;
use api::Api;
use connection::Connection;
use listener::Listener;

/// The socket, its clients, and what they may ask.
#[derive(Debug)]
pub(crate) struct Control {
    listener: Listener,
    /// After a failure, no client is accepted until then.
    rests_until: Option<Instant>,
    connections: Vec<Connection>,
    api: Api,
}

/// What is served.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// The rules at the start.
    pub(crate) rules: Vec<Rule>,
    /// Whether there is a DNS forwarder.
    pub(crate) forwarder: bool,
    /// Workers of the engine.
    pub(crate) workers: u8,
}

/// Clients at one time. One more takes the place of the one that has said nothing for longest.
const CLIENTS: usize = 16;

impl Control {
    /// Listens at `path`, where only this user may connect.
    ///
    /// # Errors
    /// Somebody else listens there, or the path cannot be had.
    pub(crate) fn open(path: &Path, served: Served) -> Result<Self, Error> {
        Ok(Self {
            listener: Listener::open(path)?,
            rests_until: None,
            connections: Vec::new(),
            api: Api::new(served),
        })
    }

    /// What to poll.
    pub(crate) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let listener = self.rests_until.is_none().then(|| self.listener.poll_fd());
        listener
            .into_iter()
            .chain(self.connections.iter().filter_map(Connection::poll_fd))
    }

    /// When to call [`Self::serve`] though nothing is ready.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let clients = self.connections.iter().map(Connection::deadline);
        clients
            .chain(self.api.round.deadline())
            .chain(self.rests_until)
            .min()
    }

    /// Whether the workers are to be heard.
    pub(crate) fn is_asking(&self) -> bool {
        self.api.round.deadline().is_some()
    }

    /// Does what can be done now. `tell` passes a word on to the engine.
    pub(crate) fn serve(&mut self, tell: &mut dyn FnMut(Update), now: Instant) {
        self.rests_until = self.rests_until.filter(|until| now < *until);
        if self.rests_until.is_none()
            && let Err(error) = self.accept(now)
        {
            tracing::warn!("cannot accept a client of the control socket: {error}");
            self.rests_until = Some(now + REST);
        }
        self.api.round.expire(now);
        for connection in &mut self.connections {
            connection.deliver(&self.api, now);
        }
        for connection in &mut self.connections {
            connection.serve(&mut self.api, tell, now);
        }
        self.api.round.go_on(tell, now);
        self.connections.retain(|connection| connection.is_open(now));
    }

    /// Another engine has taken the place of the one that was asked: it answers instead.
    pub(crate) fn ask_again(&mut self, tell: &mut dyn FnMut(Update)) {
        self.api.round.restart(tell);
    }

    /// A worker has answered.
    pub(crate) fn hear(&mut self, stats: Stats, tell: &mut dyn FnMut(Update), now: Instant) {
        if self.api.round.hear(stats) {
            self.serve(tell, now);
        }
    }

    fn accept(&mut self, now: Instant) -> io::Result<()> {
        while let Some(stream) = self.listener.accept()? {
            if self.connections.len() >= CLIENTS {
                let stalest = (0..CLIENTS).min_by_key(|place| self.connections[*place].deadline());
                if let Some(place) = stalest {
                    self.connections.swap_remove(place);
                }
            }
            self.connections.push(Connection::new(stream, now));
        }
        Ok(())
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
