//! The load server's end of a session.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt::tcp_congestion;

use crate::job::{Direction, Job, JobMessage};

use super::control::{Checkpoint, JsonLines, SessionReply, SessionRequest};
use super::datagram_counter::DatagramCounter;
use super::fault::NoFault;
use super::flow::{BulkFlow, all_moved};
use super::latency::{self, LatencySamples};
use super::round_trip::EchoConnection;
use super::server::thread;
use super::{connect, descriptors, failed, socket, stream};

/// Descriptors of the server process besides those of idle connections.
const OTHER_DESCRIPTORS: u64 = 1024;

/// State that the threads of one load server share.
#[derive(Default)]
pub(crate) struct ServerState {
    opened: AtomicU64,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    /// Counter of the most recent session that sends UDP datagrams.
    pub(crate) datagram_counter: Mutex<DatagramCounter>,
}

/// A session of a client: its job, and the TCP connections that belong to it.
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) job: Job,
    timeout: Duration,
    opened: Instant,
    flows: Mutex<Vec<Arc<BulkFlow>>>,
    idle: Mutex<Vec<TcpStream>>,
}

/// Serves one control connection until it ends, and then closes the other connections of its session.
pub(crate) fn serve_session(shared: &ServerState, socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut json = JsonLines::new(socket);
    let Some(SessionRequest::Open { job, timeout }) = json.read()? else {
        return Ok(());
    };
    if let Err(message) = prepare(&job) {
        return json.write(&SessionReply::JobMessage(message));
    }
    let session = SessionGuard::new(shared, job, timeout);
    json.write(&SessionReply::Opened {
        session: session.id,
        congestion_control: tcp_congestion(json.socket())?,
    })?;
    while let Some(request) = json.read()? {
        let answer = session
            .answer(shared, &request)
            .unwrap_or_else(SessionReply::JobMessage);
        json.write(&answer)?;
    }
    Ok(())
}

fn prepare(job: &Job) -> Result<(), JobMessage> {
    match job {
        Job::IdleFlows { flows } => descriptors::allow(u64::from(*flows) + OTHER_DESCRIPTORS),
        _ => Ok(()),
    }
}

impl ServerState {
    /// Adds a new connection to the session whose number is in its first eight bytes.
    pub(crate) fn join(&self, mut socket: TcpStream) -> Option<(Arc<Session>, Arc<BulkFlow>)> {
        let mut id = [0; 8];
        socket.read_exact(&mut id).ok()?;
        let sessions = lock(&self.sessions);
        let session = sessions.get(&u64::from_le_bytes(id))?;
        let flow = Arc::new(BulkFlow::new(socket));
        lock(&session.flows).push(Arc::clone(&flow));
        Some((Arc::clone(session), flow))
    }

    /// Keeps an idle connection open on behalf of the most recent session with the job `IdleFlows`.
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
    fn answer(&self, shared: &ServerState, request: &SessionRequest) -> Result<SessionReply, JobMessage> {
        match request {
            SessionRequest::Open { .. } => Err(failed("a second job on one control connection")),
            SessionRequest::Checkpoint => self.checkpoint(shared).map(SessionReply::Checkpoint),
            SessionRequest::Hash => {
                let flow = self.flows(1)?.remove(0);
                let hash = flow.hash(self.timeout)?;
                Ok(hash.map_or_else(
                    || SessionReply::Checkpoint(self.checkpoint_now(flow.moved())),
                    |hash| SessionReply::Hash(hash.to_hex().to_string()),
                ))
            }
            SessionRequest::Transact { duration } => {
                let samples = self.transact(*duration)?;
                Ok(SessionReply::Samples(samples))
            }
            SessionRequest::OpenStreams => {
                self.open_streams()?;
                Ok(SessionReply::Checkpoint(self.checkpoint_now(0)))
            }
        }
    }

    /// Runs transactions with the guest through a published port.
    fn transact(&self, duration: Duration) -> Result<LatencySamples, JobMessage> {
        match self.job {
            Job::PublishConnect { address, port } => {
                let to = SocketAddr::new(address, port);
                latency::run(duration, connect::transaction(to, self.timeout))
            }
            Job::PublishRoundTrip { address, port } => {
                let mut echo = EchoConnection::open(SocketAddr::new(address, port), self.timeout)?;
                latency::run(duration, || echo.exchange())
            }
            _ => Err(failed("this job has no transactions with the guest")),
        }
    }

    /// Opens the bulk connections to the guest through a published port, and starts a thread for each.
    fn open_streams(&self) -> Result<(), JobMessage> {
        let Job::PublishStream {
            address,
            port,
            direction,
            streams,
        } = self.job
        else {
            return Err(failed("this job has no connections to the guest"));
        };
        for _ in 0..streams {
            let socket = socket::connect(SocketAddr::new(address, port), self.timeout)?;
            let flow = Arc::new(BulkFlow::new(socket));
            lock(&self.flows).push(Arc::clone(&flow));
            let work = move || {
                flow.end(Err(match direction {
                    Direction::Up => stream::receive::<NoFault>(&flow),
                    Direction::Down => stream::send::<NoFault>(&flow),
                }));
            };
            thread("serve", work).map_err(failed)?;
        }
        Ok(())
    }

    fn checkpoint(&self, shared: &ServerState) -> Result<Checkpoint, JobMessage> {
        match self.job {
            Job::Datagrams { .. } | Job::SegmentedDatagrams { .. } => {
                Ok(lock(&shared.datagram_counter).checkpoint())
            }
            Job::IdleFlows { .. } => Ok(self.checkpoint_now(lock(&self.idle).len() as u64)),
            Job::Stream { streams, .. } | Job::PublishStream { streams, .. } => {
                let flows = self.flows(streams.into())?;
                let bytes = all_moved(flows.iter().map(|flow| &**flow), self.timeout)?;
                Ok(self.checkpoint_now(bytes))
            }
            _ => Err(failed("this job has no checkpoints")),
        }
    }

    fn checkpoint_now(&self, count: u64) -> Checkpoint {
        Checkpoint {
            count,
            seconds: self.opened.elapsed().as_secs_f64(),
        }
    }

    /// Waits until the session has `count` flows, and returns them.
    fn flows(&self, count: usize) -> Result<Vec<Arc<BulkFlow>>, JobMessage> {
        let since = Instant::now();
        loop {
            let flows = lock(&self.flows).clone();
            if flows.len() >= count {
                return Ok(flows);
            }
            if since.elapsed() > self.timeout {
                return Err(JobMessage::Stalled { at_byte: 0 });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A registered session, which is removed from the server's state on drop.
struct SessionGuard<'a> {
    shared: &'a ServerState,
    session: Arc<Session>,
}

impl<'a> SessionGuard<'a> {
    fn new(shared: &'a ServerState, job: Job, timeout: Duration) -> Self {
        // Numbers begin at 1: datagrams of a warm-up contain session number 0.
        let id = shared.opened.fetch_add(1, Ordering::Relaxed) + 1;
        if matches!(job, Job::Datagrams { .. } | Job::SegmentedDatagrams { .. }) {
            *lock(&shared.datagram_counter) = DatagramCounter::of(id);
        }
        let session = Arc::new(Session {
            id,
            job,
            timeout,
            opened: Instant::now(),
            flows: Mutex::default(),
            idle: Mutex::default(),
        });
        lock(&shared.sessions).insert(id, Arc::clone(&session));
        Self { shared, session }
    }
}

impl std::ops::Deref for SessionGuard<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl Drop for SessionGuard<'_> {
    fn drop(&mut self) {
        lock(&self.shared.sessions).remove(&self.session.id);
        lock(&self.session.flows).iter().for_each(|flow| flow.close());
    }
}

/// Locks a mutex and ignores poisoning. The values behind these locks are consistent at every moment, so a
/// panic of the thread that held one does no harm.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
