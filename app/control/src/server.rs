//! A listening socket, its clients, and the routes of their requests.

use std::io;
use std::time::Instant;

use rustix::event::PollFd;

use crate::connection::Connection;
use crate::hosts::Hosts;
use crate::http::{HttpRequest, HttpResponse};
use crate::listener::Listener;
use crate::{ACCEPT_RETRY, CLIENTS, REFUSALS};

/// A server of a service `S`, which is passed to each call.
pub struct Server<S: 'static> {
    listener: Listener,
    routes: &'static [Route<S>],
    hosts: Hosts,
    /// After a failure, no client is accepted until then.
    rests_until: Option<Instant>,
    connections: Vec<Connection<S>>,
}

/// A method of a resource.
pub struct Route<S> {
    /// `GET`, `PUT`, ...
    pub method: &'static str,
    /// The path of the resource.
    pub path: &'static str,
    /// Handles a request.
    pub act: fn(&mut S, &HttpRequest, Instant) -> Answer<S>,
}

/// The response to a request, now or later.
pub enum Answer<S> {
    /// The response.
    Now(HttpResponse),
    /// The response depends on other events; it is polled at each [`Server::serve`].
    Later(Look<S>),
}

/// Returns the response once it is ready.
pub type Look<S> = Box<dyn FnMut(&mut S) -> Option<HttpResponse>>;

impl<S> Server<S> {
    /// Returns a server of `routes` to clients of `listener`, for requests to `hosts`.
    #[must_use]
    pub fn new(listener: Listener, routes: &'static [Route<S>], hosts: Hosts) -> Self {
        Self {
            listener,
            routes,
            hosts,
            rests_until: None,
            connections: Vec::new(),
        }
    }

    /// Returns the listener.
    pub fn listener(&mut self) -> &mut Listener {
        &mut self.listener
    }

    /// Returns the descriptors to poll.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let listener = self.rests_until.is_none().then(|| self.listener.poll_fd());
        listener
            .into_iter()
            .chain(self.connections.iter().filter_map(Connection::poll_fd))
    }

    /// Returns the time to call [`Self::serve`] if no descriptor is ready before.
    pub fn deadline(&self) -> Option<Instant> {
        let clients = self.connections.iter().map(Connection::deadline);
        clients.chain(self.rests_until).min()
    }

    /// Accepts clients, reads requests and writes responses, without blocking.
    pub fn serve(&mut self, service: &mut S, now: Instant) {
        self.rests_until = self.rests_until.filter(|until| now < *until);
        if self.rests_until.is_none()
            && let Err(error) = self.accept(now)
        {
            tracing::warn!("cannot accept a client of {}: {error}", self.listener);
            self.rests_until = Some(now + ACCEPT_RETRY);
        }
        for connection in &mut self.connections {
            connection.deliver(service, now);
        }
        for connection in &mut self.connections {
            connection.serve(self.routes, &self.hosts, service, now);
        }
        self.connections.retain(|connection| connection.is_open(now));
    }

    /// Returns the number of connected clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.connections.len()
    }

    fn accept(&mut self, now: Instant) -> io::Result<()> {
        // Bounded, so that endless connections do not delay the connected clients. Refusals take less time than requests.
        let (mut admitted, mut refused) = (0, 0);
        while admitted < CLIENTS && refused < REFUSALS {
            let Some(stream) = self.listener.accept()? else {
                break;
            };
            if !self.listener.admits(&stream) {
                refused += 1;
                continue;
            }
            admitted += 1;
            if self.connections.len() >= CLIENTS {
                let least = (0..CLIENTS).min_by_key(|place| self.connections[*place].rank());
                if let Some(place) = least {
                    self.connections.swap_remove(place);
                }
            }
            self.connections.push(Connection::new(stream, now));
        }
        Ok(())
    }
}

/// Passes a request to its route. The response to an unknown path is 404, to another method 405.
pub fn dispatch<S>(routes: &[Route<S>], service: &mut S, request: &HttpRequest, now: Instant) -> Answer<S> {
    let here = || routes.iter().filter(|route| route.path == request.path);
    if let Some(route) = here().find(|route| route.method == request.method) {
        return (route.act)(service, request, now);
    }
    let methods: Vec<_> = here().map(|route| route.method).collect();
    Answer::Now(if methods.is_empty() {
        HttpResponse::problem(404, format_args!("no such resource: {}", request.path))
    } else {
        let allow = methods.join(", ");
        HttpResponse {
            allow: Some(allow.clone()),
            ..HttpResponse::problem(405, format_args!("{} takes {allow}", request.path))
        }
    })
}
