//! The simulated mesh between the workers of one engine: the directory of flow owners, and bounded inboxes that are
//! served with a delay.

use core::net::IpAddr;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use pontoon_engine::flow_rate::{self, Admission, FlowOpener};
use pontoon_engine::siblings::{FlowKey, HandOver, Handed, PortClients};
use pontoon_engine::{Frame, Instant, Siblings, WorkerId};
use pontoon_wire::Mac;
use pontoon_wire::frame::HEAD;
use pontoon_wire::vnet::Offload;
use vm_memory::VolatileSlice;

use crate::rng::mix;

/// The mesh of one simulated engine, shared by its workers.
#[derive(Clone, Debug)]
pub struct SimMesh(Arc<Mutex<MeshState>>);

/// State of the mesh that all workers share.
#[derive(Debug, Default)]
struct MeshState {
    owners: BTreeMap<String, WorkerId>,
    inboxes: Vec<VecDeque<QueuedFrame>>,
    room: usize,
    flows: u32,
    clients: PortClients,
    /// Number of UDP and echo flows of each worker that may be evicted.
    evictable: Vec<u32>,
    /// Number of host UDP ports that the endpoints of all workers hold, for IPv4 and IPv6.
    ports: [u32; 2],
    flow_due: Instant,
    guest_mac: Option<Mac>,
    wrong: Vec<String>,
}

/// A frame in an inbox, with its offload metadata.
#[derive(Clone, Debug)]
struct QueuedFrame {
    offload: Offload,
    bytes: Vec<u8>,
    reassembled: bool,
}

/// The access of one worker to the mesh (trait `Siblings`).
#[derive(Debug)]
pub(crate) struct SimMember {
    mesh: SimMesh,
    me: WorkerId,
}

impl SimMesh {
    /// Returns a mesh of `workers` workers, whose inboxes hold `room` frames each.
    #[must_use]
    pub(crate) fn new(workers: usize, room: usize) -> Self {
        Self(Arc::new(Mutex::new(MeshState {
            inboxes: (0..workers).map(|_| VecDeque::new()).collect(),
            room,
            ..MeshState::default()
        })))
    }

    pub(crate) fn member(&self, me: WorkerId) -> SimMember {
        SimMember {
            mesh: self.clone(),
            me,
        }
    }

    /// Returns the mesh of a successor, without flows. It has the frames that the inboxes of this one contain.
    pub(crate) fn successor(&self) -> Self {
        let old = &mut *self.lock();
        let inboxes: Vec<VecDeque<QueuedFrame>> = old
            .inboxes
            .iter()
            .map(|inbox| inbox.iter().cloned().collect())
            .collect();
        Self(Arc::new(Mutex::new(MeshState {
            inboxes,
            room: old.room,
            flow_due: old.flow_due,
            guest_mac: old.guest_mac,
            wrong: old.wrong.clone(),
            ..MeshState::default()
        })))
    }

    /// Returns a text for each of the counts and keys that workers have registered, to compare them with those of a successor.
    pub(crate) fn registered(&self) -> String {
        let state = self.lock();
        format!(
            "{:?} {} {:?} {:?} {:?}",
            state.owners, state.flows, state.clients, state.evictable, state.ports
        )
    }

    /// Returns the number of frames in the inbox of a worker.
    pub(crate) fn waiting(&self, worker: usize) -> usize {
        self.lock().inboxes[worker].len()
    }

    /// Removes up to `most` frames from the inbox of a worker, and passes them to `sink`.
    pub(crate) fn serve(&self, worker: usize, most: usize, sink: impl FnOnce(&[Handed<'_>])) {
        let mut queued: Vec<QueuedFrame> = {
            let inbox = &mut self.lock().inboxes[worker];
            let count = most.min(inbox.len());
            inbox.drain(..count).collect()
        };
        let heads: Vec<Vec<u8>> = queued
            .iter()
            .map(|frame| frame.bytes[..frame.bytes.len().min(HEAD)].to_vec())
            .collect();
        let metas: Vec<(Offload, bool)> = queued
            .iter()
            .map(|frame| (frame.offload, frame.reassembled))
            .collect();
        let parts: Vec<[VolatileSlice<'_>; 1]> = queued
            .iter_mut()
            .map(|frame| [VolatileSlice::from(&mut frame.bytes[..])])
            .collect();
        let frames: Vec<Handed<'_>> = heads
            .iter()
            .zip(&parts)
            .zip(metas)
            .map(|((head, parts), (offload, reassembled))| Handed {
                frame: Frame {
                    offload,
                    head,
                    parts,
                    len: parts[0].len(),
                },
                reassembled,
            })
            .collect();
        if !frames.is_empty() {
            sink(&frames);
        }
    }

    /// Returns the number of flow keys with an owner in the directory.
    #[must_use]
    pub fn owned(&self) -> usize {
        self.lock().owners.len()
    }

    /// Returns the number of flows that all workers together have registered.
    #[must_use]
    pub fn flows(&self) -> u32 {
        self.lock().flows
    }

    pub(crate) fn guest_mac(&self) -> Option<Mac> {
        self.lock().guest_mac
    }

    /// Returns descriptions of the workers' violations of the mesh's rules.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.lock().wrong.clone()
    }

    fn lock(&self) -> MutexGuard<'_, MeshState> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }
}

impl Siblings for SimMember {
    fn owner(&self, key: &FlowKey) -> Option<WorkerId> {
        self.mesh.lock().owners.get(&name(key)).copied()
    }

    fn claim(&self, key: &FlowKey) -> Result<(), WorkerId> {
        let mut shared = self.mesh.lock();
        match shared.owners.get(&name(key)) {
            Some(owner) if *owner != self.me => Err(*owner),
            _ => {
                shared.owners.insert(name(key), self.me);
                Ok(())
            }
        }
    }

    fn seize(&self, key: &FlowKey) {
        self.mesh.lock().owners.insert(name(key), self.me);
    }

    fn release(&self, key: &FlowKey) {
        let mut shared = self.mesh.lock();
        if shared.owners.remove(&name(key)) != Some(self.me) {
            shared
                .wrong
                .push(format!("{:?} releases {key:?}, which is not its own", self.me));
        }
    }

    fn reassembler(&self, source: IpAddr, destination: IpAddr, id: u32) -> WorkerId {
        let workers = self.mesh.lock().inboxes.len() as u64;
        let text = format!("{source} {destination} {id}");
        let hash = text.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
        WorkerId((hash % workers) as u8)
    }

    fn hand_over(&self, to: WorkerId, frame: &Frame<'_>, reassembled: bool) -> HandOver {
        let mut shared = self.mesh.lock();
        if to == self.me {
            shared.wrong.push(format!("{to:?} hands a frame to itself"));
        }
        let room = shared.room;
        let inbox = &mut shared.inboxes[usize::from(to.0)];
        if inbox.len() >= room {
            return HandOver::Dropped;
        }
        let mut bytes = vec![0; frame.len];
        frame.copy(0, &mut bytes);
        inbox.push_back(QueuedFrame {
            offload: frame.offload,
            bytes,
            reassembled,
        });
        HandOver::Queued
    }

    fn flows(&self) -> u32 {
        self.mesh.lock().flows
    }

    fn opened(&self) {
        self.mesh.lock().flows += 1;
    }

    fn closed(&self) {
        self.mesh.lock().flows -= 1;
    }

    fn clients(&self, port: u32) -> u32 {
        self.mesh.lock().clients.count(port)
    }

    fn all_clients(&self) -> u32 {
        self.mesh.lock().clients.total()
    }

    fn client_opened(&self, port: u32) {
        self.mesh.lock().clients.add(port);
    }

    fn client_closed(&self, port: u32) {
        self.mesh.lock().clients.remove(port);
    }

    fn set_evictable(&self, flows: u32) {
        let mut shared = self.mesh.lock();
        let me = usize::from(self.me.0);
        if shared.evictable.len() <= me {
            shared.evictable.resize(me + 1, 0);
        }
        shared.evictable[me] = flows;
    }

    fn most_evictable(&self) -> Option<WorkerId> {
        let shared = self.mesh.lock();
        let flows = shared.evictable.iter().copied().zip((0..).map(WorkerId));
        let (most, worker) = flows.max_by_key(|&(flows, _)| flows)?;
        (most > 0).then_some(worker)
    }

    fn ports(&self, family_of: IpAddr) -> u32 {
        self.mesh.lock().ports[usize::from(family_of.is_ipv6())]
    }

    fn port_taken(&self, family_of: IpAddr) {
        self.mesh.lock().ports[usize::from(family_of.is_ipv6())] += 1;
    }

    fn port_freed(&self, family_of: IpAddr) {
        self.mesh.lock().ports[usize::from(family_of.is_ipv6())] -= 1;
    }

    fn count_against_rate(&self, rate: u32, opener: FlowOpener, now: Instant) -> Admission {
        flow_rate::admit(&mut self.mesh.lock().flow_due, rate, opener, now)
    }

    fn guest_moved(&self, mac: Mac) {
        self.mesh.lock().guest_mac = Some(mac);
    }
}

/// Returns a text for a flow key, as `FlowKey` has no order.
fn name(key: &FlowKey) -> String {
    format!("{key:?}")
}
