//! State that the workers of one engine share: the directory of flows, an inbox for each, and some counts. An engine with
//! one worker does not have it.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, iter};

use pontoon_engine::flow_rate::{self, Admission, FlowOpener};
use pontoon_engine::siblings::{FlowKey, HandOver, Handed, PortClients};
use pontoon_engine::{Frame, Instant, Siblings, WorkerId};
use pontoon_wire::Mac;

use crate::Update;

mod directory;
mod inbox;
#[cfg(test)]
mod tests;

use directory::Directory;
use inbox::Inbox;

/// The shared state of all workers.
#[derive(Debug)]
struct WorkerMesh {
    directory: Directory,
    /// By worker.
    inboxes: Vec<Inbox>,
    /// Flows of all workers.
    flows: AtomicU32,
    /// Flows that clients of published TCP ports opened.
    clients: Mutex<PortClients>,
    /// Datagram flows that may be evicted, by worker.
    evictable: Vec<AtomicU32>,
    /// UDP ports of the host that all workers' endpoints hold: IPv4, IPv6.
    ports: [AtomicU32; 2],
    /// When the last flow would have begun, had all come evenly, in nanoseconds.
    flow_due: AtomicU64,
    /// The guest's Ethernet address, in the low 48 bits.
    guest_mac: AtomicU64,
    /// A worker's loop has ended, so that all are to end.
    ended: AtomicBool,
}

/// One worker's access to the shared state.
#[derive(Clone, Debug)]
pub(crate) struct WorkerHandle {
    mesh: Arc<WorkerMesh>,
    me: WorkerId,
}

/// Ends every worker's loop when it is dropped.
#[derive(Debug)]
pub(crate) struct EndsAll(Arc<WorkerMesh>);

/// Creates the shared state of `workers` workers, and returns a handle for each.
///
/// # Errors
/// Out of descriptors.
pub(crate) fn handles(workers: u8, guest_mac: Mac) -> io::Result<Vec<WorkerHandle>> {
    let inboxes = iter::repeat_with(Inbox::new)
        .take(workers.into())
        .collect::<io::Result<_>>()?;
    let mesh = Arc::new(WorkerMesh {
        directory: Directory::new(workers),
        inboxes,
        flows: AtomicU32::new(0),
        clients: Mutex::default(),
        evictable: (0..workers).map(|_| AtomicU32::new(0)).collect(),
        ports: [AtomicU32::new(0), AtomicU32::new(0)],
        flow_due: AtomicU64::new(0),
        guest_mac: AtomicU64::new(to_word(guest_mac)),
        ended: AtomicBool::new(false),
    });
    let handle = |me| WorkerHandle {
        mesh: Arc::clone(&mesh),
        me: WorkerId(me),
    };
    Ok((0..workers).map(handle).collect())
}

impl WorkerHandle {
    /// Returns a descriptor that becomes readable when something is put into this worker's inbox; to be registered edge
    /// triggered.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.inbox().event()
    }

    /// Passes up to a burst of frames from the inbox to `sink`, unless it is empty. Returns their number, and true if there
    /// may be more; otherwise the descriptor becomes readable for the next one.
    pub(crate) fn receive(&self, sink: impl FnOnce(&[Handed<'_>])) -> (usize, bool) {
        self.inbox().receive(sink)
    }

    /// Takes the supervisor's updates that another worker has forwarded.
    pub(crate) fn updates(&self) -> Vec<Update> {
        self.inbox().updates()
    }

    /// Forwards an update of the supervisor's to the other workers.
    pub(crate) fn forward(&self, update: &Update) {
        for inbox in self.others() {
            inbox.put_update(update.clone());
        }
    }

    /// The guest's Ethernet address, as some worker last saw it.
    pub(crate) fn guest_mac(&self) -> Mac {
        from_word(self.mesh.guest_mac.load(Ordering::Relaxed))
    }

    /// Returns true if the loop of some worker has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.mesh.ended.load(Ordering::Acquire)
    }

    /// To be held while this worker's loop runs.
    pub(crate) fn ends_all(&self) -> EndsAll {
        EndsAll(Arc::clone(&self.mesh))
    }

    fn ports_of(&self, family_of: IpAddr) -> &AtomicU32 {
        &self.mesh.ports[usize::from(family_of.is_ipv6())]
    }

    fn lock_clients(&self) -> MutexGuard<'_, PortClients> {
        self.mesh.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inbox(&self) -> &Inbox {
        &self.mesh.inboxes[usize::from(self.me.0)]
    }

    fn others(&self) -> impl Iterator<Item = &Inbox> {
        (0..)
            .zip(&self.mesh.inboxes)
            .filter_map(|(id, inbox)| (id != self.me.0).then_some(inbox))
    }
}

impl AsFd for WorkerHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event()
    }
}

impl Drop for EndsAll {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        for inbox in &self.0.inboxes {
            inbox.signal();
        }
    }
}

impl Siblings for WorkerHandle {
    fn owner(&self, key: &FlowKey) -> Option<WorkerId> {
        self.mesh.directory.owner(key)
    }

    fn claim(&self, key: &FlowKey) -> Result<(), WorkerId> {
        self.mesh.directory.claim(key, self.me)
    }

    fn seize(&self, key: &FlowKey) {
        self.mesh.directory.seize(key, self.me);
    }

    fn release(&self, key: &FlowKey) {
        self.mesh.directory.release(key, self.me);
    }

    fn reassembler(&self, source: IpAddr, destination: IpAddr, id: u32) -> WorkerId {
        self.mesh.directory.spread(&(source, destination, id))
    }

    fn hand_over(&self, to: WorkerId, frame: &Frame<'_>, reassembled: bool) -> HandOver {
        match self.mesh.inboxes.get(usize::from(to.0)) {
            Some(inbox) => inbox.put(frame, reassembled),
            None => HandOver::Dropped,
        }
    }

    fn flows(&self) -> u32 {
        self.mesh.flows.load(Ordering::Relaxed)
    }

    fn opened(&self) {
        self.mesh.flows.fetch_add(1, Ordering::Relaxed);
    }

    fn closed(&self) {
        self.mesh.flows.fetch_sub(1, Ordering::Relaxed);
    }

    fn clients(&self, port: u32) -> u32 {
        self.lock_clients().count(port)
    }

    fn all_clients(&self) -> u32 {
        self.lock_clients().total()
    }

    fn client_opened(&self, port: u32) {
        self.lock_clients().add(port);
    }

    fn client_closed(&self, port: u32) {
        self.lock_clients().remove(port);
    }

    fn set_evictable(&self, flows: u32) {
        self.mesh.evictable[usize::from(self.me.0)].store(flows, Ordering::Relaxed);
    }

    fn most_evictable(&self) -> Option<WorkerId> {
        let flows = self
            .mesh
            .evictable
            .iter()
            .map(|flows| flows.load(Ordering::Relaxed));
        let (most, worker) = flows.zip((0..).map(WorkerId)).max_by_key(|&(flows, _)| flows)?;
        (most > 0).then_some(worker)
    }

    fn ports(&self, family_of: IpAddr) -> u32 {
        self.ports_of(family_of).load(Ordering::Relaxed)
    }

    fn port_taken(&self, family_of: IpAddr) {
        self.ports_of(family_of).fetch_add(1, Ordering::Relaxed);
    }

    fn port_freed(&self, family_of: IpAddr) {
        self.ports_of(family_of).fetch_sub(1, Ordering::Relaxed);
    }

    fn count_against_rate(&self, rate: u32, opener: FlowOpener, now: Instant) -> Admission {
        let next = |due| {
            let mut due = Instant(due);
            match flow_rate::admit(&mut due, rate, opener, now) {
                Admission::Admitted => Some(due.0),
                Admission::Refused => None,
            }
        };
        let due = &self.mesh.flow_due;
        match due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(_) => Admission::Admitted,
            Err(_) => Admission::Refused,
        }
    }

    fn guest_moved(&self, mac: Mac) {
        self.mesh.guest_mac.store(to_word(mac), Ordering::Relaxed);
    }
}

fn to_word(Mac([a, b, c, d, e, f]): Mac) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

fn from_word(word: u64) -> Mac {
    let [_, _, a, b, c, d, e, f] = word.to_be_bytes();
    Mac([a, b, c, d, e, f])
}
