//! The control connection between load client and load server: lines of JSON, each request followed by its
//! reply.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt::tcp_congestion;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::job::{Job, JobMessage};

use super::client::JobClient;
use super::latency::LatencySamples;
use super::{failed, socket, stalled_or_failed};

/// A request of the load client on the control connection.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SessionRequest {
    /// Opens the session; must be the first request. The session ends with the connection.
    Open { job: Job, timeout: Duration },
    /// Requests the number of bytes, connections or datagrams that have arrived at the server.
    Checkpoint,
    /// Requests the hash of the bytes of the session's single flow. The reply is a checkpoint while the flow
    /// has not ended.
    Hash,
    /// Requests that the server runs transactions with the guest for `duration` (see `Job::PublishConnect` and
    /// `Job::PublishRoundTrip`).
    Transact { duration: Duration },
    /// Requests that the server opens the connections of `Job::PublishStream`. The reply is a checkpoint.
    OpenStreams,
}

/// The load server's reply on the control connection.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SessionReply {
    Opened {
        session: u64,
        /// TCP congestion control of the server's socket of this control connection.
        congestion_control: String,
    },
    Checkpoint(Checkpoint),
    Hash(String),
    Samples(LatencySamples),
    /// The reason why the session ends: `Stalled`, `Unreachable` or `Failed`.
    JobMessage(JobMessage),
}

/// A count of the load server, and the time at which it was read.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// Number of bytes, connections, or datagrams that have arrived.
    pub(crate) count: u64,
    /// Seconds from the opening of the session to this checkpoint; for datagrams, from the first datagram to
    /// the last.
    pub(crate) seconds: f64,
}

/// One end of a control connection, which sends and receives values as lines of JSON.
pub(crate) struct JsonLines(BufReader<TcpStream>);

impl JsonLines {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self(BufReader::new(socket))
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        self.0.get_ref()
    }

    /// Reads the next line and parses it. Returns `None` at the end of the stream.
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

/// The load client's end of the control connection of a session.
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

    /// Returns the session's number, the first eight bytes of each of its connections and datagrams.
    pub(crate) fn session(&self) -> [u8; 8] {
        self.session.to_le_bytes()
    }

    /// Returns the TCP congestion control of the client's and of the server's socket. All connections of the
    /// session are made in the same two network namespaces, and so have the same congestion control.
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

    /// Requests a checkpoint and waits for it at most `limit`.
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

    /// Requests that the server connects to the guest for `duration`, and returns its measurements.
    ///
    /// # Errors
    /// See [`checkpoint`](Self::checkpoint).
    pub(crate) fn transact(&mut self, duration: Duration) -> Result<LatencySamples, JobMessage> {
        let limit = duration + self.timeout;
        match self.request(&SessionRequest::Transact { duration }, limit, 0)? {
            SessionReply::Samples(samples) => Ok(samples),
            other => Err(unexpected(&other)),
        }
    }

    /// Has the server open the connections of the job `PublishStream`.
    ///
    /// # Errors
    /// The server's message.
    pub(crate) fn open_streams(&mut self) -> Result<(), JobMessage> {
        match self.request(&SessionRequest::OpenStreams, self.timeout, 0)? {
            SessionReply::Checkpoint(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a request and waits for the reply a little longer than `limit`: the server's own timeout should
    /// expire first, so that its error message arrives.
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
