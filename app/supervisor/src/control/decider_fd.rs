//! Decider at the other end of the descriptor of `--decider-fd`: lines of JSON in both directions.
//!
//! Requests are the lines of `GET /v1/decisions`. A verdict is a line with the fields of `POST /v1/decisions/{token}`, and
//! the token. A verdict that is not accepted is answered by a line with the fields `token` and `error`. A verdict for a token
//! that is not pending has no answer: it is that of a decider which was slower than the deadline, and has no effect.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use pontoon_control::REQUEST_TIMEOUT;
use pontoon_process::error::{Error, one_line};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SocketType, getpeername, sockopt};
use serde_json::{Map, Value, json};

use super::api::{Api, decisions};

/// Connection to the decider. It ends at the first line that is too long, if the decider does not read for
/// [`REQUEST_TIMEOUT`], or when the decider closes it.
#[derive(Debug)]
pub(super) struct DeciderDescriptor {
    socket: OwnedFd,
    received: Vec<u8>,
    /// Errors of verdicts, as whole lines, which are sent before further requests.
    errors: Vec<u8>,
    unsent: VecDeque<u8>,
    /// Time since which the decider has read nothing of what was sent; `None` if it has read everything.
    stalled_since: Option<Instant>,
}

/// State of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    Open,
    Closed,
}

/// Limit on the bytes that are received in one turn.
const TURN: usize = 64 << 10;

/// Number of unsent bytes from which on requests stay in the API's queue, which they leave at their deadline.
const FILL: usize = 16 << 10;

/// Limit on the bytes of errors that wait for the decider. Further errors are counted and not sent.
const MOST_ERRORS: usize = 64 << 10;

impl DeciderDescriptor {
    /// Wraps the descriptor of `--decider-fd`, and makes it non-blocking.
    ///
    /// # Errors
    /// The descriptor is not a connected stream socket.
    pub(super) fn new(socket: OwnedFd) -> Result<Self, Error> {
        let is_stream =
            sockopt::socket_type(&socket) == Ok(SocketType::STREAM) && getpeername(&socket).is_ok();
        if !is_stream || rustix::io::ioctl_fionbio(&socket, true).is_err() {
            let what = "the descriptor of --decider-fd is not a connected stream socket";
            return Err(Error::new(what).with_status(2));
        }
        // A slow decider has few requests of the past before it, and the others in the API's queue take turns.
        let _ = sockopt::set_socket_send_buffer_size(&socket, FILL);
        Ok(Self {
            socket,
            received: Vec::new(),
            errors: Vec::new(),
            unsent: VecDeque::new(),
            stalled_since: None,
        })
    }

    /// Returns the descriptor and events to poll.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let mut interest = PollFlags::IN;
        if !self.unsent.is_empty() {
            interest |= PollFlags::OUT;
        }
        PollFd::from_borrowed_fd(self.socket.as_fd(), interest)
    }

    /// Returns the time at which the connection is closed if the decider does not read.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.stalled_since.map(|since| since + REQUEST_TIMEOUT)
    }

    /// Receives verdicts and sends requests, without blocking.
    pub(super) fn serve(&mut self, api: &mut Api, now: Instant) -> Connection {
        match self.receive(api) {
            Ok(Connection::Open) => {}
            Ok(Connection::Closed) => return Connection::Closed,
            Err(why) => {
                tracing::warn!("the decider is disconnected: {why}");
                return Connection::Closed;
            }
        }
        while self.fill(api) {
            let state = self.send(now);
            if state == Connection::Closed || !self.unsent.is_empty() {
                return state;
            }
        }
        Connection::Open
    }

    /// Takes errors and requests until enough bytes are unsent. Returns true if any are.
    fn fill(&mut self, api: &mut Api) -> bool {
        if self.unsent.len() < FILL {
            self.unsent.extend(self.errors.drain(..));
        }
        while self.unsent.len() < FILL
            && let Some(line) = api.next_decision()
        {
            self.unsent.extend(line);
        }
        !self.unsent.is_empty()
    }

    fn receive(&mut self, api: &mut Api) -> Result<Connection, &'static str> {
        let mut buffer = [0; 16 << 10];
        let mut left = TURN;
        while left > 0 {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) => return Ok(Connection::Closed),
                Ok(len) => {
                    left = left.saturating_sub(len);
                    self.received.extend(&buffer[..len]);
                    self.take_lines(api)?;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return Ok(Connection::Closed),
            }
        }
        Ok(Connection::Open)
    }

    fn take_lines(&mut self, api: &mut Api) -> Result<(), &'static str> {
        let mut begin = 0;
        while let Some(len) = self.received[begin..].iter().position(|byte| *byte == b'\n') {
            if len > decisions::MAX_VERDICT {
                return Err("a line is too long");
            }
            let line = self.received[begin..begin + len].to_vec();
            begin += len + 1;
            if let Err(reply) = verdict(api, &line) {
                let reply = format!("{reply}\n");
                if self.errors.len() + reply.len() > MOST_ERRORS {
                    api.count_unsent_error();
                } else {
                    self.errors.extend(reply.into_bytes());
                }
            }
        }
        self.received.drain(..begin);
        match self.received.len() > decisions::MAX_VERDICT {
            true => Err("a line is too long"),
            false => Ok(()),
        }
    }

    fn send(&mut self, now: Instant) -> Connection {
        while !self.unsent.is_empty() {
            match rustix::io::write(&self.socket, self.unsent.as_slices().0) {
                Ok(len) => {
                    self.unsent.drain(..len);
                    self.stalled_since = Some(now);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let since = *self.stalled_since.get_or_insert(now);
                    if now >= since + REQUEST_TIMEOUT {
                        tracing::warn!("the decider is disconnected: it does not read");
                        return Connection::Closed;
                    }
                    return Connection::Open;
                }
                Err(_) => return Connection::Closed,
            }
        }
        self.stalled_since = None;
        Connection::Open
    }
}

/// Applies the verdict in a line. Returns the answer to a verdict that is not accepted, if it has one.
fn verdict(api: &mut Api, line: &[u8]) -> Result<(), Value> {
    let refused = |token: Option<u64>, why: &str| json!({"token": token, "error": one_line(why)});
    let mut object: Map<String, Value> =
        serde_json::from_slice(line).map_err(|error| refused(None, &error.to_string()))?;
    let token = object.remove("token").and_then(|token| token.as_u64());
    let token = token.ok_or_else(|| refused(None, "'token' is missing or not a number"))?;
    let body = || serde_json::from_value(Value::Object(object)).map_err(|error| error.to_string());
    match decisions::decide(api, token, body) {
        Err(error) if !error.is_late() => Err(refused(Some(token), &error.why)),
        Ok(()) | Err(_) => Ok(()),
    }
}
