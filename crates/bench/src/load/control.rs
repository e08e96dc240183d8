//! The conversation between the two programs: json of JSON on one connection, a question and its answer at a time.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt::tcp_congestion;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::job::{Job, Message};

use super::client::Client;
use super::latency::Samples;
use super::{failed, socket, stalled_or_failed};

/// What a client asks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The server's part in a job. First, and once; the session ends with the connection.
    Open { job: Job, timeout: Duration },
    /// What has arrived.
    Checkpoint,
    /// The hash of the session's one flow, or a checkpoint where it has not ended.
    Hash,
    /// Connect to the guest, as `PublishConnect` says, for so long.
    Connect { duration: Duration },
}

/// What the server says to it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Opened {
        session: u64,
        /// Of this connection's socket.
        congestion_control: String,
    },
    Checkpoint(Checkpoint),
    Hash(String),
    Samples(Samples),
    /// `Stalled`, `Unreachable`, or `Failed`.
    Message(Message),
}

/// A count, and the seconds that belong to it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// Bytes, connections, or datagrams.
    pub(crate) count: u64,
    /// Since the session was opened; for datagrams, from the first to the last.
    pub(crate) seconds: f64,
}

/// One end.
pub(crate) struct JsonLines(BufReader<TcpStream>);

impl JsonLines {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self(BufReader::new(socket))
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        self.0.get_ref()
    }

    /// The next line, or none at the end.
    pub(crate) fn read<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }

    pub(crate) fn write(&mut self, what: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.0.get_mut().write_all(&line)
    }
}

/// The client's session.
pub(crate) struct Control {
    json: JsonLines,
    session: u64,
    congestion_control: [String; 2],
    timeout: Duration,
}

impl Control {
    /// Opens a session for the order's job.
    ///
    /// # Errors
    /// `Unreachable`: there is no server, or it cannot do its part.
    pub(crate) fn open(client: &Client) -> Result<Self, Message> {
        let timeout = client.timeout();
        let socket = socket::connect(client.at(client.ports().control), timeout)?;
        socket.set_nodelay(true).map_err(failed)?;
        let ours = tcp_congestion(&socket).map_err(failed)?;
        let mut control = Self {
            json: JsonLines::new(socket),
            session: 0,
            congestion_control: [ours, String::new()],
            timeout,
        };
        let job = client.job().clone();
        match control.ask(&Request::Open { job, timeout }, timeout, 0)? {
            Reply::Opened {
                session,
                congestion_control,
            } => {
                control.session = session;
                control.congestion_control[1] = congestion_control;
                Ok(control)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// What the first bytes of connections and datagrams of this session write_line.
    pub(crate) fn session(&self) -> [u8; 8] {
        self.session.to_le_bytes()
    }

    /// Of the client's and of the server's socket. Every other connection of the session takes it from the same two
    /// network namespaces.
    pub(crate) fn congestion_control(&self) -> Option<[String; 2]> {
        Some(self.congestion_control.clone())
    }

    /// # Errors
    /// The server's message, or `Stalled` at `at_byte` when it says nothing.
    pub(crate) fn checkpoint(&mut self, at_byte: u64) -> Result<Checkpoint, Message> {
        self.checkpoint_within(self.timeout, at_byte)
    }

    /// # Errors
    /// As [`checkpoint`](Self::checkpoint), when it says nothing for `limit`.
    pub(crate) fn checkpoint_within(&mut self, limit: Duration, at_byte: u64) -> Result<Checkpoint, Message> {
        match self.ask(&Request::Checkpoint, limit, at_byte)? {
            Reply::Checkpoint(checkpoint) => Ok(checkpoint),
            other => Err(unexpected(&other)),
        }
    }

    /// # Errors
    /// As [`checkpoint`](Self::checkpoint).
    pub(crate) fn hash(&mut self, at_byte: u64) -> Result<String, Message> {
        loop {
            match self.ask(&Request::Hash, self.timeout, at_byte)? {
                Reply::Hash(hash) => return Ok(hash),
                Reply::Checkpoint(_) => {}
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// # Errors
    /// As [`checkpoint`](Self::checkpoint).
    pub(crate) fn connect(&mut self, duration: Duration) -> Result<Samples, Message> {
        let limit = duration + self.timeout;
        match self.ask(&Request::Connect { duration }, limit, 0)? {
            Reply::Samples(samples) => Ok(samples),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks, and waits for the answer for `limit`, and a moment more: the server's own timeout is to end first, so that
    /// its message is heard.
    fn ask(&mut self, ask: &Request, limit: Duration, at_byte: u64) -> Result<Reply, Message> {
        socket::bound_waits(self.json.socket(), limit + GRACE).map_err(failed)?;
        let answer = self.json.write(ask).and_then(|()| self.json.read());
        match answer.map_err(|error| stalled_or_failed(&error, at_byte))? {
            Some(Reply::Message(message)) => Err(message),
            Some(answer) => Ok(answer),
            None => Err(failed("the server closed the control connection")),
        }
    }
}

const GRACE: Duration = Duration::from_millis(500);

fn unexpected(answer: &Reply) -> Message {
    failed(format_args!("the server answered {answer:?}"))
}
