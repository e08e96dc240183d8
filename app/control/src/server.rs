//! Server of a control socket: a listening socket, its clients, and the handlers of their requests.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use crate::connection::Connection;
use crate::hosts::Hosts;
use crate::http::{HttpRequest, HttpResponse};
use crate::listener::Listener;
use crate::role::{Role, no_resource};
use crate::{ACCEPT_RETRY, CLIENTS, EXCHANGE_GRACE, REFUSALS};

/// Server whose handlers act on a service `S`. The server never blocks.
pub struct Server<S: 'static> {
    listener: Listener,
    protocol: Protocol<S>,
    /// Time until which no client is accepted, because the last accept has failed.
    rests_until: Option<Instant>,
    /// Time until which no client is accepted, because there are [`CLIENTS`] and none may be replaced yet.
    full_until: Option<Instant>,
    connections: Vec<Connection<S>>,
}

/// Protocol of a server's clients.
pub(crate) enum Protocol<S: 'static> {
    /// HTTP requests that `role` includes, whose `Host` header names one of `hosts`.
    Http {
        routes: &'static [Route<S>],
        role: Role,
        hosts: Hosts,
    },
    /// One request and one response, without framing, after which the connection is closed.
    Exchange(Exchange<S>),
}

/// Protocol of a server whose clients send one request, without framing, and receive one response, after which the connection is
/// closed.
pub struct Exchange<S: 'static> {
    /// Function that returns what the server sends before the request, if anything.
    pub greet: Option<fn(&mut S) -> Vec<u8>>,
    /// Handler of the request.
    pub handle: ExchangeHandler<S>,
    /// Limit on the clients that are connected at the same time. Further ones wait, at most for the time
    /// [`EXCHANGE_GRACE`] behind a client that makes no progress.
    pub clients: usize,
}

/// Handler of the only request of a client of an exchange. Its arguments are the service, the bytes that the client has
/// sent so far, true if the client has shut down its sending side, and the current time. It returns `None` if the
/// request is incomplete; otherwise the server sends the body of the response.
pub type ExchangeHandler<S> = fn(&mut S, &[u8], bool, Instant) -> Option<Answer<S>>;

/// One method of one resource: its handler, and the role that it needs.
pub struct Route<S> {
    /// HTTP method: `GET`, `PUT`, ...
    pub method: &'static str,
    /// Path of the resource. A last segment `{id}` stands for any segment, which [`HttpRequest::id`] returns.
    pub path: &'static str,
    /// Role that a client needs: this one, or one that includes it.
    pub role: Role,
    /// Function that handles a request.
    pub act: RequestHandler<S>,
}

/// Handler of a request that arrives at the given time.
pub type RequestHandler<S> = fn(&mut S, &HttpRequest, Instant) -> Answer<S>;

/// Response to a request, which is available now or later.
pub enum Answer<S> {
    /// The response is available.
    Now(HttpResponse),
    /// The response depends on other events; the function is called in each [`Server::serve`] until it returns a response.
    Later(ResponsePoll<S>),
    /// The body of the response grows for as long as the client is connected: lines of JSON.
    Stream(StreamSource<S>),
}

/// Function that returns the response to a request once it is available.
pub type ResponsePoll<S> = Box<dyn FnMut(&mut S) -> Option<HttpResponse>>;

/// Function that appends the next part of a streamed body, if there is one. It is called in each [`Server::serve`] while fewer
/// than [`STREAM_BUFFER`](crate::STREAM_BUFFER) bytes wait to be sent, and is dropped when the client disconnects or shuts down its sending side.
pub type StreamSource<S> = Box<dyn FnMut(&mut S, &mut Vec<u8>, Instant) -> StreamState>;

/// State of a streamed body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// More may follow.
    Open,
    /// The body is complete: the connection is closed behind it.
    Complete,
}

impl<S> Server<S> {
    pub(crate) fn new(listener: Listener, protocol: Protocol<S>) -> Self {
        Self {
            listener,
            protocol,
            rests_until: None,
            full_until: None,
            connections: Vec::new(),
        }
    }

    /// Returns the listening socket of the server.
    pub fn listener(&mut self) -> &mut Listener {
        &mut self.listener
    }

    /// Returns the descriptors of the listening socket and of the clients to poll.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let accepts = self.rests_until.is_none() && self.full_until.is_none();
        let listener = accepts.then(|| self.listener.poll_fd());
        listener
            .into_iter()
            .chain(self.connections.iter().filter_map(Connection::poll_fd))
    }

    /// Returns the time to call [`Self::serve`] if no descriptor becomes ready earlier.
    pub fn deadline(&self) -> Option<Instant> {
        let clients = self.connections.iter().filter_map(Connection::deadline);
        clients.chain(self.rests_until).chain(self.full_until).min()
    }

    /// Accepts clients, reads requests and writes responses, without blocking.
    pub fn serve(&mut self, service: &mut S, now: Instant) {
        self.rests_until = self.rests_until.filter(|until| now < *until);
        self.full_until = self.full_until.filter(|until| now < *until);
        if self.rests_until.is_none()
            && self.full_until.is_none()
            && let Err(error) = self.accept(service, now)
        {
            tracing::warn!("cannot accept a client of {}: {error}", self.listener);
            self.rests_until = Some(now + ACCEPT_RETRY);
        }
        for connection in &mut self.connections {
            connection.deliver(service, now);
        }
        for connection in &mut self.connections {
            connection.serve(&self.protocol, service, now);
        }
        self.connections.retain(|connection| connection.is_open(now));
        if self.connections.len() < self.protocol.clients() {
            self.full_until = None;
        }
    }

    /// Returns the number of connected clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.connections.len()
    }

    fn accept(&mut self, service: &mut S, now: Instant) -> io::Result<()> {
        // Bounded, so that endless connections do not delay the connected clients. Refusals take less time than requests.
        let (mut admitted, mut refused) = (0, 0);
        let clients = self.protocol.clients();
        while admitted < clients && refused < REFUSALS {
            let least = (0..self.connections.len()).min_by_key(|place| self.connections[*place].rank());
            let least = least.filter(|_| self.connections.len() >= clients);
            let replaceable = least.map(|place| self.connections[place].since() + self.protocol.grace());
            if replaceable.is_some_and(|replaceable| now < replaceable) {
                self.full_until = replaceable;
                break;
            }
            let Some(stream) = self.listener.accept()? else {
                break;
            };
            if !self.listener.admits(&stream) {
                refused += 1;
                continue;
            }
            admitted += 1;
            if let Some(place) = least {
                self.connections.swap_remove(place);
            }
            let greeting = self.protocol.greeting(service);
            self.connections.push(Connection::new(stream, greeting, now));
        }
        Ok(())
    }
}

impl<S> Route<S> {
    /// Returns the route of a method and a path.
    pub const fn new(method: &'static str, path: &'static str, role: Role, act: RequestHandler<S>) -> Self {
        Self {
            method,
            path,
            role,
            act,
        }
    }

    fn is_for(&self, path: &str) -> bool {
        match self.path.strip_suffix(ANY_SEGMENT) {
            Some(parent) => path
                .strip_prefix(parent)
                .is_some_and(|last| !last.is_empty() && !last.contains('/')),
            None => self.path == path,
        }
    }
}

/// Last segment of a route's path that stands for any segment.
const ANY_SEGMENT: &str = "{id}";

impl<S> Protocol<S> {
    /// Returns the time for which a client that makes no progress is not replaced by another one. An HTTP client
    /// repeats a request if its connection is closed; a client of an exchange may not.
    fn grace(&self) -> Duration {
        match self {
            Self::Http { .. } => Duration::ZERO,
            Self::Exchange(_) => EXCHANGE_GRACE,
        }
    }

    /// Returns the limit on the clients that are connected at the same time.
    const fn clients(&self) -> usize {
        match self {
            Self::Http { .. } => CLIENTS,
            Self::Exchange(exchange) => exchange.clients,
        }
    }

    /// Returns what the server sends to a new client before its request.
    fn greeting(&self, service: &mut S) -> Vec<u8> {
        match self {
            Self::Exchange(Exchange {
                greet: Some(greet), ..
            }) => greet(service),
            _ => Vec::new(),
        }
    }
}

/// Passes a request to its route. The response is 404 for an unknown path, 405 for an unsupported method, and a refusal
/// for a request that `role` does not include.
pub fn dispatch<S>(
    routes: &[Route<S>],
    role: Role,
    service: &mut S,
    request: &HttpRequest,
    now: Instant,
) -> Answer<S> {
    let path = &request.path;
    let here = || routes.iter().filter(|route| route.is_for(path));
    let methods: Vec<_> = here()
        .filter(|route| role.includes(route.role))
        .map(|route| route.method)
        .collect();
    let found = here().find(|route| route.method == request.method);
    Answer::Now(match found {
        Some(route) if role.includes(route.role) => return (route.act)(service, request, now),
        None if here().next().is_none() => no_resource(path),
        None if !methods.is_empty() => {
            let allow = methods.join(", ");
            HttpResponse {
                allow: Some(allow.clone()),
                ..HttpResponse::problem(405, format_args!("{path} takes {allow}"))
            }
        }
        Some(_) | None => role.refusal(path),
    })
}

#[cfg(test)]
mod tests;
