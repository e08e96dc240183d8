//! The conversation between the two programs: lines of JSON on one connection, a question and its answer at a time.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt::tcp_congestion;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::job::{Job, Word};

use super::latency::Sheet;
use super::stage::Stage;
use super::{failed, socket, stalled_or_failed};

/// What a client asks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// The server's part in a job. First, and once; the session ends with the connection.
    Open { job: Job, patience: Duration },
    /// What has arrived.
    Mark,
    /// The hash of the session's one flow, or a mark where it has not ended.
    Hash,
    /// Connect to the guest, as `PublishConnect` says, for so long.
    Connect { duration: Duration },
}

/// What the server says to it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Opened {
        session: u64,
        /// Of this connection's socket.
        congestion_control: String,
    },
    Mark(Mark),
    Hash(String),
    Sheet(Sheet),
    /// `Stalled`, `Unreachable`, or `Failed`.
    Word(Word),
}

/// A count, and the seconds that belong to it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// Bytes, connections, or datagrams.
    pub(crate) count: u64,
    /// Since the session was opened; for datagrams, from the first to the last.
    pub(crate) seconds: f64,
}

/// One end.
pub(crate) struct Lines(BufReader<TcpStream>);

impl Lines {
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
    lines: Lines,
    session: u64,
    congestion_control: [String; 2],
    patience: Duration,
}

impl Control {
    /// Opens a session for the order's job.
    ///
    /// # Errors
    /// `Unreachable`: there is no server, or it cannot do its part.
    pub(crate) fn open(stage: &Stage) -> Result<Self, Word> {
        let patience = stage.patience();
        let socket = socket::connect(stage.at(stage.ports().control), patience)?;
        socket.set_nodelay(true).map_err(failed)?;
        let ours = tcp_congestion(&socket).map_err(failed)?;
        let mut control = Self {
            lines: Lines::new(socket),
            session: 0,
            congestion_control: [ours, String::new()],
            patience,
        };
        let job = stage.job().clone();
        match control.ask(&Ask::Open { job, patience }, patience, 0)? {
            Answer::Opened {
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

    /// What the first bytes of connections and datagrams of this session say.
    pub(crate) fn session(&self) -> [u8; 8] {
        self.session.to_le_bytes()
    }

    /// Of the client's and of the server's socket. Every other connection of the session takes it from the same two
    /// network namespaces.
    pub(crate) fn congestion_control(&self) -> Option<[String; 2]> {
        Some(self.congestion_control.clone())
    }

    /// # Errors
    /// The server's word, or `Stalled` at `at_byte` when it says nothing.
    pub(crate) fn mark(&mut self, at_byte: u64) -> Result<Mark, Word> {
        self.mark_within(self.patience, at_byte)
    }

    /// # Errors
    /// As [`mark`](Self::mark), when it says nothing for `limit`.
    pub(crate) fn mark_within(&mut self, limit: Duration, at_byte: u64) -> Result<Mark, Word> {
        match self.ask(&Ask::Mark, limit, at_byte)? {
            Answer::Mark(mark) => Ok(mark),
            other => Err(unexpected(&other)),
        }
    }

    /// # Errors
    /// As [`mark`](Self::mark).
    pub(crate) fn hash(&mut self, at_byte: u64) -> Result<String, Word> {
        loop {
            match self.ask(&Ask::Hash, self.patience, at_byte)? {
                Answer::Hash(hash) => return Ok(hash),
                Answer::Mark(_) => {}
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// # Errors
    /// As [`mark`](Self::mark).
    pub(crate) fn connect(&mut self, duration: Duration) -> Result<Sheet, Word> {
        let limit = duration + self.patience;
        match self.ask(&Ask::Connect { duration }, limit, 0)? {
            Answer::Sheet(sheet) => Ok(sheet),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks, and waits for the answer for `limit`, and a moment more: the server's own patience is to end first, so that
    /// its word is heard.
    fn ask(&mut self, ask: &Ask, limit: Duration, at_byte: u64) -> Result<Answer, Word> {
        socket::bound_waits(self.lines.socket(), limit + GRACE).map_err(failed)?;
        let answer = self.lines.write(ask).and_then(|()| self.lines.read());
        match answer.map_err(|error| stalled_or_failed(&error, at_byte))? {
            Some(Answer::Word(word)) => Err(word),
            Some(answer) => Ok(answer),
            None => Err(failed("the server closed the control connection")),
        }
    }
}

const GRACE: Duration = Duration::from_millis(500);

fn unexpected(answer: &Answer) -> Word {
    failed(format_args!("the server answered {answer:?}"))
}
