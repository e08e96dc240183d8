//! Connection of one client of a control server: receives requests and sends responses.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};

use crate::hosts::Hosts;
use crate::http::{self, HttpRequest, HttpResponse, Parsed};
use crate::role::Role;
use crate::server::{
    self, Answer, ExchangeHandler, Protocol, ResponsePoll, Route, StreamSource, StreamState,
};
use crate::{IDLE_TIMEOUT, REQUEST_TIMEOUT, STREAM_BUFFER};

/// Connection of one client, with its receive buffer, unsent responses and waiting request.
pub(crate) struct Connection<S> {
    socket: OwnedFd,
    received: Vec<u8>,
    /// True if the receive buffer begins with a request that has not been parsed.
    more: bool,
    unsent: VecDeque<u8>,
    waiting: Option<WaitingRequest<S>>,
    /// Source of the body that is being sent, if it is a stream.
    stream: Option<StreamSource<S>>,
    /// Time of the client's last progress: it connected, began a request, or received a part of a response.
    since: Instant,
    /// True if `100 Continue` was sent for the request that is being received.
    continued: bool,
    /// True if the client has shut down its sending side.
    ended: bool,
    /// True if no further request is read, and the connection is closed after the response.
    closing: bool,
    /// Number of bytes to read and discard before the connection is closed: closing a socket with unread data resets the
    /// connection, and the client would lose the response.
    discard: usize,
}

/// Request whose response is not available yet.
struct WaitingRequest<S> {
    look: ResponsePoll<S>,
    manner: ResponseMode,
}

/// Properties of a response that follow from its request.
#[derive(Clone, Copy, Debug)]
struct ResponseMode {
    close: bool,
    part: ResponsePart,
}

/// Parts of a response that the server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponsePart {
    Whole,
    Head,
    /// The body only, for clients that do not use HTTP.
    Body,
}

impl ResponseMode {
    fn of(request: &HttpRequest) -> Self {
        Self {
            close: request.close,
            part: match request.method == "HEAD" {
                true => ResponsePart::Head,
                false => ResponsePart::Whole,
            },
        }
    }
}

impl<S> Connection<S> {
    /// Returns the connection of a new client, to which `greeting` is sent first.
    pub(crate) fn new(socket: OwnedFd, greeting: Vec<u8>, now: Instant) -> Self {
        Self {
            socket,
            received: Vec::new(),
            more: false,
            unsent: greeting.into(),
            waiting: None,
            stream: None,
            since: now,
            continued: false,
            ended: false,
            closing: false,
            discard: 0,
        }
    }

    /// Returns the descriptor and events to poll. While a response is not available, only the hang-up of the client is
    /// polled, and only once. If another request is in the receive buffer, the descriptor is polled for writing, which
    /// returns immediately.
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        let interest = match (self.unsent.is_empty(), &self.waiting) {
            (false, _) => PollFlags::OUT,
            // Further requests of the client are not read, but its end is.
            (true, None) if self.stream.is_some() => PollFlags::RDHUP,
            (true, None) if self.more => PollFlags::OUT,
            (true, None) => PollFlags::IN,
            // poll(2) reports a hang-up even without interest in events, and repeatedly until end-of-file is read, which is
            // not done while a pipelined request is in the buffer or the buffer is full.
            (true, Some(_)) if self.ended || self.more || self.received.len() >= http::LONGEST => {
                return None;
            }
            (true, Some(_)) => PollFlags::empty(),
        };
        Some(PollFd::from_borrowed_fd(self.socket.as_fd(), interest))
    }

    /// Returns the time at which the client is disconnected; `None` while it has read all of a stream.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.stream.is_some() && self.unsent.is_empty() {
            return None;
        }
        let idle = self.received.is_empty() && self.unsent.is_empty() && !self.closing;
        Some(self.since + if idle { IDLE_TIMEOUT } else { REQUEST_TIMEOUT })
    }

    /// Returns the rank of a client when there are too many: the client with the lowest rank is disconnected. It is the one
    /// that has been idle for longest or, if none is idle, the one that has made no progress for longest.
    pub(crate) fn rank(&self) -> (bool, Instant) {
        let waits = self.waiting.is_some() || self.stream.is_some();
        let idle = self.received.is_empty() && self.unsent.is_empty() && !waits;
        (!idle, self.since)
    }

    /// Returns the time of the client's last progress: its connection, the start of a request, or a sent part of a
    /// response.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    pub(crate) fn is_open(&self, now: Instant) -> bool {
        let over = self.closing && self.discard == 0 || self.ended && self.waiting.is_none() && !self.more;
        self.deadline().is_none_or(|deadline| now < deadline) && !(over && self.unsent.is_empty())
    }

    /// Sends the response to the waiting request, if the response is available, or the next part of the streamed body.
    pub(crate) fn deliver(&mut self, service: &mut S, now: Instant) {
        self.continue_stream(service, now);
        if let Some(mut waiting) = self.waiting.take() {
            match (waiting.look)(service) {
                Some(response) => self.answer(&response, waiting.manner, now),
                None => self.waiting = Some(waiting),
            }
        }
    }

    /// Sends the next parts of the streamed body, until there is none, or unsent bytes wait.
    fn continue_stream(&mut self, service: &mut S, now: Instant) {
        while self.unsent.len() < STREAM_BUFFER
            && let Some(mut source) = self.stream.take()
        {
            if self.unsent.is_empty() {
                // The client has read everything so far: the timeout begins with the next part.
                self.since = now;
            }
            let mut part = Vec::new();
            let state = source(service, &mut part, now);
            let is_last = part.is_empty();
            self.unsent.extend(part);
            match state {
                StreamState::Open => self.stream = Some(source),
                StreamState::Complete => self.closing = true,
            }
            if is_last {
                return;
            }
            self.send(now);
            if !self.unsent.is_empty() {
                return;
            }
        }
    }

    /// Receives data of the client and responds to one request only, so that a client with many requests delays no other
    /// client.
    pub(crate) fn serve(&mut self, protocol: &Protocol<S>, service: &mut S, now: Instant) {
        if self.closing {
            self.receive_and_discard();
        } else if self.stream.is_some() {
            self.receive_end_of_stream();
        } else if !self.ended && !self.more {
            self.receive(now);
        }
        self.send(now);
        if self.unsent.is_empty() {
            self.continue_stream(service, now);
        }
        // A client that does not read its responses gets no further responses.
        if self.unsent.is_empty() && !self.closing && self.waiting.is_none() && self.stream.is_none() {
            match protocol {
                Protocol::Http { routes, role, hosts } => self.look((routes, *role), hosts, service, now),
                Protocol::Exchange(exchange) => self.exchange(exchange.handle, service, now),
            }
            self.send(now);
        }
    }

    /// Parses the request at the front of the receive buffer and responds to it.
    fn look(&mut self, permitted: (&[Route<S>], Role), hosts: &Hosts, service: &mut S, now: Instant) {
        self.more = false;
        match http::parse(&self.received) {
            Parsed::Partial { expects_continue } => {
                if expects_continue && !self.continued {
                    self.continued = true;
                    self.unsent.extend(http::CONTINUE);
                }
            }
            Parsed::Whole(mut request, len) => {
                self.received.drain(..len);
                request.role = permitted.1;
                self.more = !self.received.is_empty();
                self.continued = false;
                if hosts.admit(request.host.as_deref()) {
                    self.take(&request, permitted, service, now);
                } else {
                    let manner = ResponseMode::of(&request);
                    self.answer(&HttpResponse::problem(421, OTHER_HOST), manner, now);
                }
            }
            Parsed::Wrong(response) => {
                let manner = ResponseMode {
                    close: true,
                    part: ResponsePart::Whole,
                };
                self.received.clear();
                self.answer(&response, manner, now);
                self.discard = if self.ended { 0 } else { DISCARDED };
            }
        }
    }

    /// Handles the only request of a client of an exchange, if the request is complete.
    fn exchange(&mut self, handler: ExchangeHandler<S>, service: &mut S, now: Instant) {
        if let Some(answer) = handler(service, &self.received, self.ended, now) {
            self.received.clear();
            let manner = ResponseMode {
                close: true,
                part: ResponsePart::Body,
            };
            self.take_answer(answer, manner, now);
        }
    }

    fn take(
        &mut self,
        request: &HttpRequest,
        (routes, role): (&[Route<S>], Role),
        service: &mut S,
        now: Instant,
    ) {
        let manner = ResponseMode::of(request);
        let answer = server::dispatch(routes, role, service, request, now);
        self.take_answer(answer, manner, now);
        // The first part of a stream follows its head at once.
        self.continue_stream(service, now);
    }

    fn take_answer(&mut self, answer: Answer<S>, manner: ResponseMode, now: Instant) {
        match answer {
            Answer::Now(response) => self.answer(&response, manner, now),
            Answer::Later(look) => self.waiting = Some(WaitingRequest { look, manner }),
            Answer::Stream(source) => {
                http::write_stream_head(&mut self.unsent);
                // What the source has not sent yet may become out of date, so that little of it waits in the kernel, too.
                let _ = sockopt::set_socket_send_buffer_size(&self.socket, STREAM_BUFFER);
                self.stream = Some(source);
                self.since = now;
            }
        }
    }

    fn answer(&mut self, response: &HttpResponse, manner: ResponseMode, now: Instant) {
        match manner.part {
            ResponsePart::Body => {
                self.unsent.extend(&response.body);
                self.discard = if self.ended { 0 } else { DISCARDED };
            }
            part => response.write(&mut self.unsent, manner.close, part == ResponsePart::Head),
        }
        self.closing |= manner.close;
        self.since = now;
    }

    fn receive(&mut self, now: Instant) {
        let mut buffer = [0; 16 << 10];
        while self.received.len() < http::LONGEST {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) => self.ended = true,
                Ok(len) => {
                    if self.received.is_empty() {
                        self.since = now;
                    }
                    self.received.extend(&buffer[..len]);
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {}
                Err(_) => self.give_up(),
            }
            return;
        }
    }

    /// Ends the stream if the client has disconnected or shut down its sending side; data of the client is discarded.
    fn receive_end_of_stream(&mut self) {
        let mut buffer = [0; 4 << 10];
        // Bounded, so that a client that sends without end does not delay others.
        for _ in 0..16 {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(1..) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok(0) | Err(_) => {
                    self.stream = None;
                    return self.give_up();
                }
            }
        }
    }

    /// Receives and discards data of a client whose connection is to be closed.
    fn receive_and_discard(&mut self) {
        let mut buffer = [0; 16 << 10];
        while self.discard > 0 {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(len @ 1..) => self.discard = self.discard.saturating_sub(len),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok(_) | Err(_) => self.discard = 0,
            }
        }
    }

    fn send(&mut self, now: Instant) {
        while !self.unsent.is_empty() {
            match rustix::io::write(&self.socket, self.unsent.as_slices().0) {
                Ok(len) => {
                    self.unsent.drain(..len);
                    self.since = now;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.give_up(),
            }
        }
        if self.closing {
            // The client reads end-of-file after the response, even if data of the client remains to be read, or if a process
            // that this one has just forked has not closed its copy of the descriptor yet.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        }
    }

    /// Discards all state of a client whose connection has failed.
    fn give_up(&mut self) {
        self.discard = 0;
        self.more = false;
        self.unsent.clear();
        self.waiting = None;
        self.closing = true;
    }
}

/// Limit on the bytes that are read and discarded before a connection is closed. It exceeds a body that is too long by
/// mistake.
const DISCARDED: usize = 16 << 20;

/// Error text for a request whose `Host` field names a host that is not served.
const OTHER_HOST: &str = "invalid Host field (try: an address, or --metrics-host)";
