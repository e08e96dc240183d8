//! Hash table of connections by addresses and ports of both ends.

use core::hash::{Hash, Hasher};
use core::net::IpAddr;

use hashbrown::HashTable;

use super::connection::ConnectionKey;
use crate::ledger::Ends;
use crate::siblings::FlowKey;
use crate::state::{Reader, StateError, Writer};
use crate::table::Secret;

/// Slots of connections by their keys. The hash is keyed, because the guest chooses addresses and ports.
#[derive(Debug)]
pub(super) struct ConnectionTable {
    slots: HashTable<u32>,
    secret: Secret,
    /// Key of the hash that is a part of initial sequence numbers.
    sequence_secret: Secret,
}

impl ConnectionTable {
    pub(super) fn new([secret, sequence_secret]: [Secret; 2]) -> Self {
        Self {
            slots: HashTable::new(),
            secret,
            sequence_secret,
        }
    }

    fn hash(&self, key: &ConnectionKey) -> u64 {
        self.secret.hash(key)
    }

    /// Returns the part of an initial sequence number that depends on both ends of a connection (RFC 6528).
    pub(super) fn sequence_hash(&self, key: &ConnectionKey) -> u64 {
        self.sequence_secret.hash(key)
    }

    /// Appends the part of the table that is not computed from the connections.
    pub(super) fn save(&self, to: &mut Writer<'_>) {
        let Self {
            slots: _,
            secret: _,
            sequence_secret,
        } = self;
        to.put(sequence_secret);
    }

    pub(super) fn load(&mut self, from: &mut Reader<'_>) -> Result<(), StateError> {
        self.sequence_secret = from.get()?;
        Ok(())
    }

    /// Returns the slot of the connection with this key, for which `is` has to return true.
    pub(super) fn find(&self, key: &ConnectionKey, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.slots.find(self.hash(key), |&slot| is(slot)).copied()
    }

    pub(super) fn insert(&mut self, key: &ConnectionKey, slot: u32, key_of: impl Fn(u32) -> ConnectionKey) {
        let secret = self.secret;
        self.slots
            .insert_unique(secret.hash(key), slot, |&other| secret.hash(&key_of(other)));
    }

    pub(super) fn remove(&mut self, key: &ConnectionKey, slot: u32) {
        if let Ok(entry) = self.slots.find_entry(self.hash(key), |&other| other == slot) {
            entry.remove();
        }
    }
}

impl From<ConnectionKey> for FlowKey {
    fn from(ConnectionKey { guest, remote }: ConnectionKey) -> Self {
        Self::Tcp { guest, remote }
    }
}

impl From<ConnectionKey> for Ends {
    fn from(ConnectionKey { guest, remote }: ConnectionKey) -> Self {
        Self { guest, remote }
    }
}

/// Hashes addresses and ports only. The hash is computed for every segment, and that of `SocketAddr` would process up
/// to four times as many bytes.
impl Hash for ConnectionKey {
    fn hash<S: Hasher>(&self, hasher: &mut S) {
        for end in [self.guest, self.remote] {
            match end.ip() {
                IpAddr::V4(v4) => hasher.write(&v4.octets()),
                IpAddr::V6(v6) => hasher.write(&v6.octets()),
            }
            hasher.write_u16(end.port());
        }
    }
}
