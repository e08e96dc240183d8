//! State that the workers of one engine share: the directory of flow owners, an inbox for each worker, and counts for the
//! common limits. An engine with one worker has no mesh.

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

/// State that all workers of an engine share.
#[derive(Debug)]
struct WorkerMesh {
    directory: Directory,
    /// Inbox of each worker, by its index.
    inboxes: Vec<Inbox>,
    /// Number of flows of all workers.
    flows: AtomicU32,
    /// Number of flows that clients of each published TCP port have opened.
    clients: Mutex<PortClients>,
    /// Number of datagram flows of each worker that may be evicted.
    evictable: Vec<AtomicU32>,
    /// Number of UDP ports of the host that the endpoints of all workers hold: IPv4, IPv6.
    ports: [AtomicU32; 2],
    /// Time at which the last flow would have begun if all flows had begun at the permitted rate, in nanoseconds.
    flow_due: AtomicU64,
    /// Ethernet address of the guest, in the low 48 bits.
    guest_mac: AtomicU64,
    /// True if the loop of a worker has ended, so that all loops have to end.
    ended: AtomicBool,
}

/// Access of one worker to the state that all workers share.
#[derive(Clone, Debug)]
pub(crate) struct WorkerHandle {
    mesh: Arc<WorkerMesh>,
    me: WorkerId,
}

/// Guard that ends the loops of all workers when it is dropped.
#[derive(Debug)]
pub(crate) struct EndsAll(Arc<WorkerMesh>);

/// Creates the shared state of `workers` workers, and returns a handle for each.
///
/// # Errors
/// No free descriptor for an inbox's eventfd.
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
    /// Returns the eventfd that becomes readable when an entry is added to this worker's inbox. It has to be registered
    /// edge triggered.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.inbox().event()
    }

    /// Passes up to a burst of frames from this worker's inbox to `sink`, unless it is empty. Returns their number, and
    /// true if there may be more; otherwise the eventfd becomes readable for the next one.
    pub(crate) fn receive(&self, sink: impl FnOnce(&[Handed<'_>])) -> (usize, bool) {
        self.inbox().receive(sink)
    }

    /// Takes the updates of the supervisor that another worker has forwarded.
    pub(crate) fn updates(&self) -> Vec<Update> {
        self.inbox().updates()
    }

    /// Forwards an update of the supervisor to the other workers.
    pub(crate) fn forward(&self, update: &Update) {
        for inbox in self.others() {
            inbox.put_update(update.clone());
        }
    }

    /// Returns the Ethernet address of the guest, as the last worker that learned it has stored it.
    pub(crate) fn guest_mac(&self) -> Mac {
        from_word(self.mesh.guest_mac.load(Ordering::Relaxed))
    }

    /// Returns true if the loop of a worker has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.mesh.ended.load(Ordering::Acquire)
    }

    /// Returns a guard that the worker holds while its loop runs.
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
