//! The server's end of a session.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt::tcp_congestion;

use crate::job::{Job, Word};

use super::control::{Answer, Ask, Lines, Mark};
use super::flow::{Flow, all_moved};
use super::tally::Tally;
use super::{connect, descriptors, failed, latency};

/// Descriptors of the server that are not idle flows.
const OTHER_DESCRIPTORS: u64 = 1024;

/// What the server's threads share.
#[derive(Default)]
pub(crate) struct Shared {
    opened: AtomicU64,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    /// Of the last session with datagrams.
    pub(crate) tally: Mutex<Tally>,
}

/// A client's job.
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) job: Job,
    patience: Duration,
    opened: Instant,
    flows: Mutex<Vec<Arc<Flow>>>,
    idle: Mutex<Vec<TcpStream>>,
}

/// Holds one conversation, and then takes with it what the client had open.
pub(crate) fn converse(shared: &Shared, socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut lines = Lines::new(socket);
    let Some(Ask::Open { job, patience }) = lines.read()? else {
        return Ok(());
    };
    if let Err(word) = prepare(&job) {
        return lines.write(&Answer::Word(word));
    }
    let session = Open::new(shared, job, patience);
    lines.write(&Answer::Opened {
        session: session.id,
        congestion_control: tcp_congestion(lines.socket())?,
    })?;
    while let Some(ask) = lines.read()? {
        let answer = session.answer(shared, &ask).unwrap_or_else(Answer::Word);
        lines.write(&answer)?;
    }
    Ok(())
}

fn prepare(job: &Job) -> Result<(), Word> {
    match job {
        Job::IdleFlows { flows } => descriptors::allow(u64::from(*flows) + OTHER_DESCRIPTORS),
        _ => Ok(()),
    }
}

impl Shared {
    /// Puts a new connection under watch in the session that it says it belongs to.
    pub(crate) fn join(&self, mut socket: TcpStream) -> Option<(Arc<Session>, Arc<Flow>)> {
        let mut id = [0; 8];
        socket.read_exact(&mut id).ok()?;
        let sessions = lock(&self.sessions);
        let session = sessions.get(&u64::from_le_bytes(id))?;
        let flow = Arc::new(Flow::new(socket));
        lock(&session.flows).push(Arc::clone(&flow));
        Some((Arc::clone(session), flow))
    }

    /// Keeps a silent connection open for the last session that wants any.
    pub(crate) fn keep(&self, socket: TcpStream) {
        let sessions = lock(&self.sessions);
        let wanting = sessions
            .values()
            .filter(|session| matches!(session.job, Job::IdleFlows { .. }));
        if let Some(session) = wanting.max_by_key(|session| session.id) {
            lock(&session.idle).push(socket);
        }
    }
}

impl Session {
    fn answer(&self, shared: &Shared, ask: &Ask) -> Result<Answer, Word> {
        match ask {
            Ask::Open { .. } => Err(failed("a second job on one control connection")),
            Ask::Mark => self.mark(shared).map(Answer::Mark),
            Ask::Hash => {
                let flow = self.flows(1)?.remove(0);
                let hash = flow.hash(self.patience)?;
                Ok(hash.map_or_else(
                    || Answer::Mark(self.mark_now(flow.moved())),
                    |hash| Answer::Hash(hash.to_hex().to_string()),
                ))
            }
            Ask::Connect { duration } => {
                let Job::PublishConnect { address, port } = self.job else {
                    return Err(failed("nowhere to connect to"));
                };
                let to = SocketAddr::new(address, port);
                latency::run(*duration, connect::transaction(to, self.patience)).map(Answer::Sheet)
            }
        }
    }

    fn mark(&self, shared: &Shared) -> Result<Mark, Word> {
        match self.job {
            Job::Datagrams { .. } | Job::SegmentedDatagrams { .. } => Ok(lock(&shared.tally).mark()),
            Job::IdleFlows { .. } => Ok(self.mark_now(lock(&self.idle).len() as u64)),
            Job::Stream { streams, .. } => {
                let flows = self.flows(streams.into())?;
                let bytes = all_moved(flows.iter().map(|flow| &**flow), self.patience)?;
                Ok(self.mark_now(bytes))
            }
            _ => Err(failed("this job has no marks")),
        }
    }

    fn mark_now(&self, count: u64) -> Mark {
        Mark {
            count,
            seconds: self.opened.elapsed().as_secs_f64(),
        }
    }

    /// Waits until there are as many as `count`.
    fn flows(&self, count: usize) -> Result<Vec<Arc<Flow>>, Word> {
        let since = Instant::now();
        loop {
            let flows = lock(&self.flows).clone();
            if flows.len() >= count {
                return Ok(flows);
            }
            if since.elapsed() > self.patience {
                return Err(Word::Stalled { at_byte: 0 });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A session for as long as its control connection.
struct Open<'a> {
    shared: &'a Shared,
    session: Arc<Session>,
}

impl<'a> Open<'a> {
    fn new(shared: &'a Shared, job: Job, patience: Duration) -> Self {
        // 0 is nobody's: a warm-up's datagrams.
        let id = shared.opened.fetch_add(1, Ordering::Relaxed) + 1;
        if matches!(job, Job::Datagrams { .. } | Job::SegmentedDatagrams { .. }) {
            *lock(&shared.tally) = Tally::of(id);
        }
        let session = Arc::new(Session {
            id,
            job,
            patience,
            opened: Instant::now(),
            flows: Mutex::default(),
            idle: Mutex::default(),
        });
        lock(&shared.sessions).insert(id, Arc::clone(&session));
        Self { shared, session }
    }
}

impl std::ops::Deref for Open<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        lock(&self.shared.sessions).remove(&self.session.id);
        lock(&self.session.flows).iter().for_each(|flow| flow.close());
    }
}

/// Values behind these locks are whole at every moment, so that a panic while one was held spoils nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
