//! Things found by key, by slot, or by age: datagram flows and their peers.

use core::hash::{Hash, Hasher};

use hashbrown::HashTable;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::RngCore;
use siphasher::sip::SipHasher13;

use crate::slab::Slab;

/// The secret of a hash table whose keys the guest chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secret(u64, u64);

impl Secret {
    pub(crate) fn new(random: &mut ChaCha12Rng) -> Self {
        Self(random.next_u64(), random.next_u64())
    }

    pub(crate) fn hash(self, key: &impl Hash) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.0, self.1);
        key.hash(&mut hasher);
        hasher.finish()
    }
}

/// A slab whose entries have keys and an order of age: the entry that was not touched for longest comes first to hand.
/// Every operation takes constant time.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    slots: Slab<Slot<K, V>>,
    index: HashTable<u32>,
    secret: Secret,
    newest: Option<u32>,
    oldest: Option<u32>,
}

#[derive(Debug)]
struct Slot<K, V> {
    key: K,
    age: Age,
    value: V,
}

#[derive(Debug)]
enum Age {
    /// Between these two in the order.
    Counts { newer: Option<u32>, older: Option<u32> },
    /// Never the idlest.
    Pinned,
}

impl<K: Eq + Hash, V> Table<K, V> {
    pub(crate) fn new(secret: Secret) -> Self {
        Self {
            slots: Slab::default(),
            index: HashTable::new(),
            secret,
            newest: None,
            oldest: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Index and generation of the entry that [`Self::insert`] makes next.
    pub(crate) fn vacant(&mut self) -> (u32, u16) {
        self.slots.vacant()
    }

    /// Adds an entry, the newest. No other has this key.
    pub(crate) fn insert(&mut self, key: K, value: V) -> u32 {
        debug_assert!(self.find(&key).is_none(), "a key has one entry");
        let hash = self.secret.hash(&key);
        let age = Age::Counts {
            newer: None,
            older: None,
        };
        let (index, _) = self.slots.insert_with(|_, _| Slot { key, age, value });
        let (slots, secret) = (&self.slots, self.secret);
        self.index
            .insert_unique(hash, index, |&other| secret.hash(&slots.at(other).key));
        self.link(index);
        index
    }

    pub(crate) fn find(&self, key: &K) -> Option<u32> {
        self.index
            .find(self.secret.hash(key), |&index| self.slots.at(index).key == *key)
            .copied()
    }

    /// The entry of this life of the slot, if it still is.
    pub(crate) fn get_mut(&mut self, index: u32, generation: u16) -> Option<&mut V> {
        Some(&mut self.slots.get_mut(index, generation)?.value)
    }

    /// The places of all entries.
    pub(crate) fn places(&self) -> Vec<u32> {
        self.slots.iter().map(|(index, ..)| index).collect()
    }

    /// An entry that is known to be there.
    pub(crate) fn at(&self, index: u32) -> &V {
        &self.slots.at(index).value
    }

    /// As [`Self::at`].
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut V {
        &mut self.slots.at_mut(index).value
    }

    pub(crate) fn key(&self, index: u32) -> &K {
        &self.slots.at(index).key
    }

    pub(crate) fn generation(&self, index: u32) -> u16 {
        self.slots.generation(index)
    }

    /// Every entry, in the order of the slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        self.slots.iter().map(|(index, _, slot)| (index, &slot.value))
    }

    /// Makes an entry the newest, unless it is pinned.
    pub(crate) fn touch(&mut self, index: u32) {
        if self.newest != Some(index) && !matches!(self.slots.at(index).age, Age::Pinned) {
            self.unlink(index);
            self.link(index);
        }
    }

    /// Takes an entry out of the order of age for good.
    pub(crate) fn pin(&mut self, index: u32) {
        self.unlink(index);
        self.slots.at_mut(index).age = Age::Pinned;
    }

    /// The entry that was not touched for longest.
    pub(crate) fn idlest(&self) -> Option<u32> {
        self.oldest
    }

    pub(crate) fn remove(&mut self, index: u32) -> V {
        let slots = &self.slots;
        let hash = self.secret.hash(&slots.at(index).key);
        if let Ok(entry) = self.index.find_entry(hash, |&other| other == index) {
            entry.remove();
        }
        self.unlink(index);
        self.slots.remove(index).value
    }

    fn link(&mut self, index: u32) {
        let older = self.newest.replace(index);
        self.slots.at_mut(index).age = Age::Counts { newer: None, older };
        match older {
            Some(older) => *self.newer(older) = Some(index),
            None => self.oldest = Some(index),
        }
    }

    fn unlink(&mut self, index: u32) {
        let Age::Counts { newer, older } = self.slots.at(index).age else {
            return;
        };
        match newer {
            Some(newer) => *self.older(newer) = older,
            None => self.newest = older,
        }
        match older {
            Some(older) => *self.newer(older) = newer,
            None => self.oldest = newer,
        }
    }

    fn newer(&mut self, index: u32) -> &mut Option<u32> {
        match &mut self.slots.at_mut(index).age {
            Age::Counts { newer, .. } => newer,
            Age::Pinned => unreachable!("the order of age leaves pinned entries out"),
        }
    }

    fn older(&mut self, index: u32) -> &mut Option<u32> {
        match &mut self.slots.at_mut(index).age {
            Age::Counts { older, .. } => older,
            Age::Pinned => unreachable!("the order of age leaves pinned entries out"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    fn table() -> Table<u32, &'static str> {
        Table::new(Secret::new(&mut ChaCha12Rng::from_seed([7; 32])))
    }

    /// Takes everything out, the idlest first.
    fn drain(mut table: Table<u32, &'static str>) -> Vec<&'static str> {
        core::iter::from_fn(|| table.idlest().map(|index| table.remove(index))).collect()
    }

    #[test]
    fn finds_by_key() {
        let mut table = table();
        let (promised, generation) = table.vacant();
        let one = table.insert(1, "one");
        assert_eq!((one, generation), (promised, table.generation(one)));
        assert_eq!(table.find(&1), Some(one));
        assert_eq!(table.find(&2), None);
        assert_eq!(table.remove(one), "one");
        assert_eq!(table.find(&1), None);
        assert_eq!(table.get_mut(one, generation), None);
    }

    #[test]
    fn touching_makes_young() {
        let mut table = table();
        let [a, _, c] = [(1, "a"), (2, "b"), (3, "c")].map(|(key, value)| table.insert(key, value));
        table.touch(a);
        table.touch(a);
        table.touch(c);
        assert_eq!(drain(table), ["b", "a", "c"]);
    }

    #[test]
    fn pinned_entries_have_no_age() {
        let mut table = table();
        let [a, b, _] = [(1, "a"), (2, "b"), (3, "c")].map(|(key, value)| table.insert(key, value));
        table.pin(b);
        table.pin(a);
        table.touch(a);
        assert_eq!(table.len(), 3);
        assert_eq!(table.remove(b), "b");
        assert_eq!(drain(table), ["c"]);
    }

    #[test]
    fn keeps_keys_apart_while_growing() {
        let mut table = table();
        for key in 0..1_000 {
            table.insert(key, "");
        }
        for key in (0..1_000).step_by(2) {
            let index = table.find(&key).unwrap();
            table.remove(index);
        }
        assert!((0..1_000).all(|key| table.find(&key).is_some() == (key % 2 == 1)));
    }
}
