//! One client.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use pontoon_runtime::Update;
use rustix::event::{PollFd, PollFlags};

use super::api::{Answer, Api, Render};
use super::http::{self, Parsed, Request, Response};
use super::{IDLE, PATIENCE};

#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
    unsent: Vec<u8>,
    waiting: Option<Waiting>,
    /// When the client last got on: connected, began a request, took some of an answer.
    since: Instant,
    /// It has been told that its body is wanted.
    continued: bool,
    /// It will say no more.
    ended: bool,
    /// It gets no other answer.
    closing: bool,
}

/// A request that the engine's answer is needed for.
#[derive(Debug)]
struct Waiting {
    /// The first round that will do.
    round: u64,
    render: Render,
    manner: Manner,
}

/// How to answer.
#[derive(Clone, Copy, Debug)]
struct Manner {
    close: bool,
    head_only: bool,
}

impl Connection {
    pub(super) fn new(stream: UnixStream, now: Instant) -> Self {
        Self {
            stream,
            received: Vec::new(),
            unsent: Vec::new(),
            waiting: None,
            since: now,
            continued: false,
            ended: false,
            closing: false,
        }
    }

    /// What to poll. While the client waits for the engine, that is nothing but its end, and that once.
    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        let interest = match (self.unsent.is_empty(), &self.waiting) {
            (false, _) => PollFlags::OUT,
            (true, None) => PollFlags::IN,
            (true, Some(_)) if self.ended => return None,
            (true, Some(_)) => PollFlags::empty(),
        };
        Some(PollFd::from_borrowed_fd(self.stream.as_fd(), interest))
    }

    pub(super) fn deadline(&self) -> Instant {
        let idle = self.received.is_empty() && self.unsent.is_empty();
        self.since + if idle { IDLE } else { PATIENCE }
    }

    pub(super) fn is_open(&self, now: Instant) -> bool {
        let over = self.closing || self.ended && self.waiting.is_none();
        now < self.deadline() && !(over && self.unsent.is_empty())
    }

    /// Answers what waited for the engine.
    pub(super) fn deliver(&mut self, api: &Api, now: Instant) {
        if let Some(waiting) = self.waiting.take() {
            match api.round.result(waiting.round) {
                Some(said) => self.answer(&(waiting.render)(api, said), waiting.manner, now),
                None => self.waiting = Some(waiting),
            }
        }
    }

    /// Takes what the client says, and answers what can be answered.
    pub(super) fn serve(&mut self, api: &mut Api, tell: &mut dyn FnMut(Update), now: Instant) {
        if !self.ended {
            self.receive(now);
        }
        loop {
            self.send(now);
            // A client that does not take its answers gets no others.
            if !self.unsent.is_empty() || self.closing || self.waiting.is_some() {
                return;
            }
            match http::parse(&self.received) {
                Parsed::Partial { expects_continue } => {
                    if !expects_continue || self.continued {
                        return;
                    }
                    self.continued = true;
                    self.unsent.extend(http::CONTINUE);
                }
                Parsed::Whole(request, len) => {
                    self.received.drain(..len);
                    self.continued = false;
                    self.take(&request, api, tell, now);
                }
                Parsed::Wrong(response) => {
                    let manner = Manner {
                        close: true,
                        head_only: false,
                    };
                    self.received.clear();
                    self.answer(&response, manner, now);
                }
            }
        }
    }

    fn take(&mut self, request: &Request, api: &mut Api, tell: &mut dyn FnMut(Update), now: Instant) {
        let manner = Manner {
            close: request.close,
            head_only: request.method == "HEAD",
        };
        match api.handle(request, tell) {
            Answer::Now(response) => self.answer(&response, manner, now),
            Answer::Later(render) => {
                self.waiting = Some(Waiting {
                    round: api.round.ask(tell, now),
                    render,
                    manner,
                });
            }
        }
    }

    fn answer(&mut self, response: &Response, manner: Manner, now: Instant) {
        response.write(&mut self.unsent, manner.close, manner.head_only);
        self.closing |= manner.close;
        self.since = now;
    }

    fn receive(&mut self, now: Instant) {
        let mut buffer = [0; 16 << 10];
        while self.received.len() < http::LONGEST {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.ended = true,
                Ok(len) => {
                    if self.received.is_empty() {
                        self.since = now;
                    }
                    self.received.extend(&buffer[..len]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.give_up(),
            }
            return;
        }
    }

    fn send(&mut self, now: Instant) {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(len) => {
                    self.unsent.drain(..len);
                    self.since = now;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.give_up(),
            }
        }
    }

    /// The client is gone.
    fn give_up(&mut self) {
        self.unsent.clear();
        self.waiting = None;
        self.closing = true;
    }
}
