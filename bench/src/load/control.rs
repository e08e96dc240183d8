//! The control connection: lines of JSON, a request and its reply at a time.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt::tcp_congestion;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::job::{Job, JobMessage};

use super::client::JobClient;
use super::latency::Samples;
use super::{failed, socket, stalled_or_failed};

/// A request of the client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SessionRequest {
    /// Opens the session. It must be the first request, and ends with the connection.
    Open { job: Job, timeout: Duration },
    /// Requests the count of what has arrived.
    Checkpoint,
    /// Requests the hash of the session's one flow. The reply is a checkpoint while the flow has not ended.
    Hash,
    /// Requests that the server connects to the guest for this long (see `PublishConnect`).
    Connect { duration: Duration },
}

/// The server's reply.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SessionReply {
    Opened {
        session: u64,
        /// The congestion control of this connection's socket.
        congestion_control: String,
    },
    Checkpoint(Checkpoint),
    Hash(String),
    Samples(Samples),
    /// One of `Stalled`, `Unreachable`, `Failed`.
    JobMessage(JobMessage),
}

/// A count, and the time at which it was read.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// The number of bytes, connections, or datagrams.
    pub(crate) count: u64,
    /// Seconds since the session was opened; for datagrams, from the first to the last.
    pub(crate) seconds: f64,
}

/// One end of the connection.
pub(crate) struct JsonLines(BufReader<TcpStream>);

impl JsonLines {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self(BufReader::new(socket))
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        self.0.get_ref()
    }

    /// Reads the next line. Returns `None` at the end.
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

/// The client's end of a session.
pub(crate) struct ControlConnection {
    json: JsonLines,
    session: u64,
    congestion_control: [String; 2],
    timeout: Duration,
}

impl ControlConnection {
    /// Opens a session for the job.
    ///
    /// # Errors
    /// `Unreachable`: there is no server, or it lacks the resources for the job.
    pub(crate) fn open(client: &JobClient) -> Result<Self, JobMessage> {
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
        match control.request(&SessionRequest::Open { job, timeout }, timeout, 0)? {
            SessionReply::Opened {
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

    /// The tag with which connections and datagrams of this session begin.
    pub(crate) fn session(&self) -> [u8; 8] {
        self.session.to_le_bytes()
    }

    /// The congestion control of the client's and of the server's socket. All connections of the session are made in
    /// the same two network namespaces, and so have the same.
    pub(crate) fn congestion_control(&self) -> Option<[String; 2]> {
        Some(self.congestion_control.clone())
    }

    /// Requests a checkpoint.
    ///
    /// # Errors
    /// The server's message, or `Stalled` at `at_byte` if there is no reply.
    pub(crate) fn checkpoint(&mut self, at_byte: u64) -> Result<Checkpoint, JobMessage> {
        self.checkpoint_within(self.timeout, at_byte)
    }

    /// Requests a checkpoint with a timeout of `limit`.
    ///
    /// # Errors
    /// See [`checkpoint`](Self::checkpoint).
    pub(crate) fn checkpoint_within(
        &mut self,
        limit: Duration,
        at_byte: u64,
    ) -> Result<Checkpoint, JobMessage> {
        match self.request(&SessionRequest::Checkpoint, limit, at_byte)? {
            SessionReply::Checkpoint(checkpoint) => Ok(checkpoint),
            other => Err(unexpected(&other)),
        }
    }

    /// Requests the hash of the session's flow.
    ///
    /// # Errors
    /// See [`checkpoint`](Self::checkpoint).
    pub(crate) fn hash(&mut self, at_byte: u64) -> Result<String, JobMessage> {
        loop {
            match self.request(&SessionRequest::Hash, self.timeout, at_byte)? {
                SessionReply::Hash(hash) => return Ok(hash),
                SessionReply::Checkpoint(_) => {}
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Requests connections to the guest.
    ///
    /// # Errors
    /// See [`checkpoint`](Self::checkpoint).
    pub(crate) fn connect(&mut self, duration: Duration) -> Result<Samples, JobMessage> {
        let limit = duration + self.timeout;
        match self.request(&SessionRequest::Connect { duration }, limit, 0)? {
            SessionReply::Samples(samples) => Ok(samples),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a request and waits for the reply, a little longer than `limit`: the server's own timeout should end
    /// first, so that its message arrives.
    fn request(
        &mut self,
        request: &SessionRequest,
        limit: Duration,
        at_byte: u64,
    ) -> Result<SessionReply, JobMessage> {
        socket::bound_waits(self.json.socket(), limit + GRACE).map_err(failed)?;
        let answer = self.json.write(request).and_then(|()| self.json.read());
        match answer.map_err(|error| stalled_or_failed(&error, at_byte))? {
            Some(SessionReply::JobMessage(message)) => Err(message),
            Some(answer) => Ok(answer),
            None => Err(failed("the server closed the control connection")),
        }
    }
}

const GRACE: Duration = Duration::from_millis(500);

fn unexpected(answer: &SessionReply) -> JobMessage {
    failed(format_args!("the server answered {answer:?}"))
}
