//! Server of a control socket: a listening socket, its clients, and the routes of their requests.

use std::io;
use std::time::Instant;

use rustix::event::PollFd;

use crate::connection::Connection;
use crate::hosts::Hosts;
use crate::http::{HttpRequest, HttpResponse};
use crate::listener::Listener;
use crate::{ACCEPT_RETRY, CLIENTS, REFUSALS};

/// Server of HTTP requests to a service `S`, which is passed to the routes. It never blocks.
pub struct Server<S: 'static> {
    listener: Listener,
    routes: &'static [Route<S>],
    hosts: Hosts,
    /// Time until which no client is accepted, because the last accept has failed.
    rests_until: Option<Instant>,
    connections: Vec<Connection<S>>,
}

/// Handler of one method of one resource.
pub struct Route<S> {
    /// HTTP method: `GET`, `PUT`, ...
    pub method: &'static str,
    /// Path of the resource.
    pub path: &'static str,
    /// Function that handles a request at the given time.
    pub act: fn(&mut S, &HttpRequest, Instant) -> Answer<S>,
}

/// Response to a request, which is available now or later.
pub enum Answer<S> {
    /// The response is available.
    Now(HttpResponse),
    /// The response depends on other events; the function is called in each [`Server::serve`] until it returns a response.
    Later(ResponsePoll<S>),
}

/// Function that returns the response to a request once it is available.
pub type ResponsePoll<S> = Box<dyn FnMut(&mut S) -> Option<HttpResponse>>;

impl<S> Server<S> {
    /// Returns a server that handles requests of the clients of `listener` by `routes`, if they name one of `hosts`.
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

    /// Returns the listening socket of the server.
    pub fn listener(&mut self) -> &mut Listener {
        &mut self.listener
    }

    /// Returns the descriptors of the listening socket and of the clients to poll.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let listener = self.rests_until.is_none().then(|| self.listener.poll_fd());
        listener
            .into_iter()
            .chain(self.connections.iter().filter_map(Connection::poll_fd))
    }

    /// Returns the time to call [`Self::serve`] if no descriptor becomes ready earlier.
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

/// Passes a request to its route. The response is 404 for an unknown path, and 405 for an unsupported method.
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
