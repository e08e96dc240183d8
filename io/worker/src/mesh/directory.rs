//! Directory of the mesh, which has the worker that owns each flow.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::{BuildHasher, Hash};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pontoon_engine::WorkerId;
use pontoon_engine::siblings::FlowKey;

/// Number of separately locked parts of the directory: many times the number of workers, so that two workers seldom contend
/// for a lock.
const SHARDS: usize = 64;

type Owners = HashMap<FlowKey, WorkerId, RandomState>;

/// Directory of flow owners. Its hashes are keyed (SipHash), because the guest chooses the keys. Its size is limited by the
/// number of flows: a key is claimed by the worker that opens a flow, within the limit on flows, and released when the flow
/// ends.
#[derive(Debug)]
pub(super) struct Directory {
    shards: Box<[RwLock<Owners>]>,
    secret: RandomState,
    workers: u8,
}

impl Directory {
    pub(super) fn new(workers: u8) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            secret: RandomState::new(),
            workers,
        }
    }

    pub(super) fn owner(&self, key: &FlowKey) -> Option<WorkerId> {
        self.read(key).get(key).copied()
    }

    /// Makes `worker` the owner of the flow `key`. If another worker owns it, that worker is the error.
    pub(super) fn claim(&self, key: &FlowKey, worker: WorkerId) -> Result<(), WorkerId> {
        match self.write(key).entry(*key) {
            // The key was left by a handler of the same worker that panicked before the flow had a slot.
            Entry::Occupied(entry) if *entry.get() == worker => Ok(()),
            Entry::Occupied(entry) => Err(*entry.get()),
            Entry::Vacant(entry) => {
                entry.insert(worker);
                Ok(())
            }
        }
    }

    /// Makes `worker` the owner of the flow `key`, even if another worker owns it.
    pub(super) fn seize(&self, key: &FlowKey, worker: WorkerId) {
        self.write(key).insert(*key, worker);
    }

    /// Removes the flow `key`, if `worker` owns it.
    pub(super) fn release(&self, key: &FlowKey, worker: WorkerId) {
        if let Entry::Occupied(entry) = self.write(key).entry(*key)
            && *entry.get() == worker
        {
            entry.remove();
        }
    }

    /// Returns a worker that depends only on `key`, by a hash that the guest cannot predict.
    pub(super) fn spread(&self, key: &impl Hash) -> WorkerId {
        let place = self.secret.hash_one(key) % u64::from(self.workers);
        WorkerId(u8::try_from(place).expect("less than the number of workers, which fits"))
    }

    // A poisoned lock is used: a thread that panics ends the engine, and leaves the map consistent.
    fn read(&self, key: &FlowKey) -> RwLockReadGuard<'_, Owners> {
        self.shard(key).read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, key: &FlowKey) -> RwLockWriteGuard<'_, Owners> {
        self.shard(key).write().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, key: &FlowKey) -> &RwLock<Owners> {
        let place = self.secret.hash_one(key) % SHARDS as u64;
        &self.shards[usize::try_from(place).expect("less than the number of shards")]
    }
}

#[cfg(test)]
impl Directory {
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().unwrap().len()).sum()
    }
}
