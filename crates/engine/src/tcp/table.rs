//! From a segment's addresses to the connection's slot.

use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

use super::connection::Key;

/// Slots by key. The hash is keyed, as the guest chooses the keys.
#[derive(Debug)]
pub(super) struct Table {
    slots: HashTable<u32>,
    secret: (u64, u64),
}

impl Table {
    pub(super) fn new(secret: (u64, u64)) -> Self {
        Self {
            slots: HashTable::new(),
            secret,
        }
    }

    /// A keyed hash of both ends; also what initial sequence numbers are made of (RFC 6528).
    pub(super) fn hash(&self, key: &Key) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        for end in [key.guest, key.remote] {
            write(&mut hasher, end);
        }
        hasher.finish()
    }

    /// The slot for which `is` says that it has this key.
    pub(super) fn find(&self, key: &Key, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.slots.find(self.hash(key), |&slot| is(slot)).copied()
    }

    pub(super) fn insert(&mut self, key: &Key, slot: u32, key_of: impl Fn(u32) -> Key) {
        let (hash, secret) = (self.hash(key), self.secret);
        self.slots.insert_unique(hash, slot, |&other| {
            Self {
                slots: HashTable::new(),
                secret,
            }
            .hash(&key_of(other))
        });
    }

    pub(super) fn remove(&mut self, key: &Key, slot: u32) {
        if let Ok(entry) = self.slots.find_entry(self.hash(key), |&other| other == slot) {
            entry.remove();
        }
    }
}

fn write(hasher: &mut SipHasher13, end: SocketAddr) {
    match end.ip() {
        IpAddr::V4(v4) => hasher.write(&v4.octets()),
        IpAddr::V6(v6) => hasher.write(&v6.octets()),
    }
    hasher.write_u16(end.port());
}
