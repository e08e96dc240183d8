//! A table whose entries are found by key, by slot, or by time of last use; it stores UDP endpoints, their peers, and
//! echo ids.

use core::hash::{Hash, Hasher};
use std::collections::BTreeSet;

use hashbrown::HashTable;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::RngCore;
use siphasher::sip::SipHasher13;

use crate::slab::Slab;
use crate::state::{Reader, Record, StateError, Writer, check, record_enum};

/// Key of SipHash for a hash table whose keys the guest chooses, so that the guest cannot produce collisions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secret(u64, u64);

impl Record for Secret {
    fn save(&self, to: &mut Writer<'_>) {
        let Self(one, other) = self;
        to.put(one);
        to.put(other);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        Ok(Self(from.get()?, from.get()?))
    }
}

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

/// A hash table in a slab, whose entries are also in an order of last use: the idlest entry, which was not used for
/// longest, is the first to evict. Each group of entries has its own order. All operations take constant time.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    slots: Slab<TableEntry<K, V>>,
    index: HashTable<u32>,
    secret: Secret,
    groups: Vec<AgeList>,
}

/// Doubly linked list of a group's entries in the order of last use, by its ends.
#[derive(Clone, Copy, Debug, Default)]
struct AgeList {
    newest: Option<u32>,
    oldest: Option<u32>,
    len: usize,
}

/// An entry of a [`Table`] with its key, its group, and its position in the order of last use.
#[derive(Debug)]
struct TableEntry<K, V> {
    key: K,
    group: u32,
    age: AgePosition,
    value: V,
}

/// Position of an entry in its group's order of last use.
#[derive(Debug)]
enum AgePosition {
    /// The entry is in its group's order of last use, between these two entries.
    Counts { newer: Option<u32>, older: Option<u32> },
    /// The entry is not in the order, and is never the idlest.
    Pinned,
}

impl<K: Eq + Hash, V> Table<K, V> {
    pub(crate) fn new(secret: Secret) -> Self {
        Self {
            slots: Slab::default(),
            index: HashTable::new(),
            secret,
            groups: vec![AgeList::default()],
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the index and generation of the entry that [`Self::insert`] will add next.
    pub(crate) fn vacant(&mut self) -> (u32, u16) {
        self.slots.vacant()
    }

    /// Adds an entry to group 0 as the last used one. No other entry may have this key.
    pub(crate) fn insert(&mut self, key: K, value: V) -> u32 {
        self.insert_in(0, key, value)
    }

    /// Adds an entry to a group as its last used one. No other entry of the table may have this key.
    pub(crate) fn insert_in(&mut self, group: u32, key: K, value: V) -> u32 {
        if self.groups.len() <= group as usize {
            self.groups.resize(group as usize + 1, AgeList::default());
        }
        debug_assert!(self.find(&key).is_none(), "a key has one entry");
        let hash = self.secret.hash(&key);
        let age = AgePosition::Counts {
            newer: None,
            older: None,
        };
        let (index, _) = self.slots.insert_with(|_, _| TableEntry {
            key,
            group,
            age,
            value,
        });
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

    /// Returns the entry of a slot; `None` if the slot is free or has another generation.
    pub(crate) fn get_mut(&mut self, index: u32, generation: u16) -> Option<&mut V> {
        Some(&mut self.slots.get_mut(index, generation)?.value)
    }

    /// Returns true if a slot has an entry of this generation.
    pub(crate) fn is_current(&self, index: u32, generation: u16) -> bool {
        self.slots.get(index, generation).is_some()
    }

    /// Returns the indices of all entries.
    pub(crate) fn places(&self) -> Vec<u32> {
        self.slots.iter().map(|(index, ..)| index).collect()
    }

    /// Returns the entry of a slot that the caller knows to be in use.
    pub(crate) fn at(&self, index: u32) -> &V {
        &self.slots.at(index).value
    }

    /// Returns the entry of a slot like [`Self::at`], for modification.
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut V {
        &mut self.slots.at_mut(index).value
    }

    /// Returns true if a slot has an entry.
    pub(crate) fn contains(&self, index: u32) -> bool {
        self.slots.contains(index)
    }

    /// Returns true if the entry is not in the order of last use.
    pub(crate) fn is_pinned(&self, index: u32) -> bool {
        matches!(self.slots.at(index).age, AgePosition::Pinned)
    }

    /// Returns the group of an entry.
    pub(crate) fn group(&self, index: u32) -> u32 {
        self.slots.at(index).group
    }

    pub(crate) fn key(&self, index: u32) -> &K {
        &self.slots.at(index).key
    }

    pub(crate) fn generation(&self, index: u32) -> u16 {
        self.slots.generation(index)
    }

    /// Returns all entries with their indices, in the order of the slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        self.slots.iter().map(|(index, _, slot)| (index, &slot.value))
    }

    /// Returns index, generation, key and value of the entries in the `len` slots from `first` on.
    pub(crate) fn part(&self, first: u32, len: u32) -> impl Iterator<Item = (u32, u16, &K, &V)> {
        let part = self.slots.part(first, len);
        part.map(|(index, generation, slot)| (index, generation, &slot.key, &slot.value))
    }

    /// Returns the total number of slots, in use or free.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.slots()
    }

    /// Moves an entry to the last used position of its group, unless it is pinned.
    pub(crate) fn touch(&mut self, index: u32) {
        let slot = self.slots.at(index);
        let is_newest = self.groups[slot.group as usize].newest == Some(index);
        if !is_newest && !matches!(slot.age, AgePosition::Pinned) {
            self.unlink(index);
            self.link(index);
        }
    }

    /// Removes an entry from the order of last use permanently, so that it is never the idlest.
    pub(crate) fn pin(&mut self, index: u32) {
        self.unlink(index);
        self.slots.at_mut(index).age = AgePosition::Pinned;
    }

    /// Returns the entry of group 0 that was not used for longest.
    pub(crate) fn idlest(&self) -> Option<u32> {
        self.idlest_in(0)
    }

    /// Returns the entry of a group that was not used for longest.
    pub(crate) fn idlest_in(&self, group: u32) -> Option<u32> {
        self.groups.get(group as usize)?.oldest
    }

    /// Returns the number of entries in a group, without pinned ones.
    pub(crate) fn len_of(&self, group: u32) -> usize {
        self.groups.get(group as usize).map_or(0, |group| group.len)
    }

    /// Returns the number of groups, including those that have no entries any more.
    pub(crate) fn groups(&self) -> u32 {
        u32::try_from(self.groups.len()).unwrap_or(u32::MAX)
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
        let group = &mut self.groups[self.slots.at(index).group as usize];
        let older = group.newest.replace(index);
        group.oldest.get_or_insert(index);
        group.len += 1;
        self.slots.at_mut(index).age = AgePosition::Counts { newer: None, older };
        if let Some(older) = older {
            *self.newer(older) = Some(index);
        }
    }

    fn unlink(&mut self, index: u32) {
        let slot = self.slots.at(index);
        let AgePosition::Counts { newer, older } = slot.age else {
            return;
        };
        let group = &mut self.groups[slot.group as usize];
        group.len -= 1;
        if newer.is_none() {
            group.newest = older;
        }
        if older.is_none() {
            group.oldest = newer;
        }
        if let Some(newer) = newer {
            *self.older(newer) = older;
        }
        if let Some(older) = older {
            *self.newer(older) = newer;
        }
    }

    fn newer(&mut self, index: u32) -> &mut Option<u32> {
        match &mut self.slots.at_mut(index).age {
            AgePosition::Counts { newer, .. } => newer,
            AgePosition::Pinned => unreachable!("the order of last use has no pinned entries"),
        }
    }

    fn older(&mut self, index: u32) -> &mut Option<u32> {
        match &mut self.slots.at_mut(index).age {
            AgePosition::Counts { older, .. } => older,
            AgePosition::Pinned => unreachable!("the order of last use has no pinned entries"),
        }
    }
}

/// How an entry is found by its time of last use, without its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SavedAge {
    Counts,
    Pinned,
}

record_enum! { SavedAge { 0 = Counts, 1 = Pinned } }

impl<K: Eq + Hash + Record, V> Table<K, V> {
    /// Appends the entries, each with what `entry` appends, and the order of last use. The keyed hash is not a part of the
    /// state.
    pub(crate) fn save(&self, to: &mut Writer<'_>, mut entry: impl FnMut(&mut Writer<'_>, u32, u16, &V)) {
        let Self {
            slots,
            index: _,
            secret: _,
            groups,
        } = self;
        slots.save(to, |to, index, generation, slot| {
            let TableEntry { key, group, age, value } = slot;
            to.put(key);
            to.put(group);
            to.put(match age {
                AgePosition::Counts { .. } => &SavedAge::Counts,
                AgePosition::Pinned => &SavedAge::Pinned,
            });
            entry(to, index, generation, value);
        });
        to.count(groups.len());
        for group in groups {
            let mut at = group.oldest;
            to.count(group.len);
            while let Some(index) = at {
                to.put(&index);
                at = match slots.at(index).age {
                    AgePosition::Counts { newer, .. } => newer,
                    AgePosition::Pinned => None,
                };
            }
        }
    }

    /// Reads what [`Self::save`] has written into this table, which is empty: at most `most` entries in `most_groups` groups.
    /// `entry` reads a value by its index, generation and key; if it returns `None`, there is no such entry.
    pub(crate) fn load(
        &mut self,
        from: &mut Reader<'_>,
        (most, most_groups): (usize, usize),
        mut entry: impl FnMut(&mut Reader<'_>, u32, u16, &K) -> Result<Option<V>, StateError>,
    ) -> Result<(), StateError> {
        self.slots = Slab::load(from, most, |from, index, generation| {
            let key = from.get()?;
            let group = from.get()?;
            check((group as usize) < most_groups)?;
            let age = match from.get()? {
                SavedAge::Counts => AgePosition::Counts {
                    newer: None,
                    older: None,
                },
                SavedAge::Pinned => AgePosition::Pinned,
            };
            let value = entry(from, index, generation, &key)?;
            Ok(value.map(|value| TableEntry { key, group, age, value }))
        })?;
        let indices: Vec<u32> = self.places();
        for index in indices {
            check(self.find(self.key(index)).is_none())?;
            let (slots, secret) = (&self.slots, self.secret);
            let hash = |&other: &u32| secret.hash(&slots.at(other).key);
            self.index.insert_unique(hash(&index), index, hash);
        }
        self.load_order(from, most_groups)
    }

    fn load_order(&mut self, from: &mut Reader<'_>, most_groups: usize) -> Result<(), StateError> {
        let mut unlinked: BTreeSet<u32> = self
            .slots
            .iter()
            .filter(|(_, _, slot)| matches!(slot.age, AgePosition::Counts { .. }))
            .map(|(index, ..)| index)
            .collect();
        let groups = from.count(most_groups)?;
        self.groups = vec![AgeList::default(); groups.max(1)];
        for group in 0..groups {
            for index in from.list::<u32>(self.slots.slots() as usize)? {
                if !self.slots.contains(index) {
                    // The entry was refused.
                    continue;
                }
                check(unlinked.remove(&index) && self.slots.at(index).group as usize == group)?;
                self.link(index);
            }
        }
        check(unlinked.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    fn table() -> Table<u32, &'static str> {
        Table::new(Secret::new(&mut ChaCha12Rng::from_seed([7; 32])))
    }

    /// Removes all entries, the idlest first, and returns their values.
    fn drain(mut table: Table<u32, &'static str>) -> Vec<&'static str> {
        core::iter::from_fn(|| table.idlest().map(|index| table.remove(index))).collect()
    }

    #[test]
    fn entry_is_found_by_its_key() {
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
    fn touched_entry_becomes_the_youngest() {
        let mut table = table();
        let [a, _, c] = [(1, "a"), (2, "b"), (3, "c")].map(|(key, value)| table.insert(key, value));
        table.touch(a);
        table.touch(a);
        table.touch(c);
        assert_eq!(drain(table), ["b", "a", "c"]);
    }

    #[test]
    fn pinned_entries_are_never_the_idlest() {
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
    fn each_group_has_its_own_idlest_entry() {
        let mut table = table();
        let [a, b, c] = [(0, 1, "a"), (3, 2, "b"), (3, 3, "c")]
            .map(|(group, key, value)| table.insert_in(group, key, value));
        assert_eq!(
            [0, 1, 3, 9].map(|group| table.idlest_in(group)),
            [Some(a), None, Some(b), None]
        );
        assert_eq!([0, 1, 3, 9].map(|group| table.len_of(group)), [1, 0, 2, 0]);
        table.touch(b);
        assert_eq!(table.idlest_in(3), Some(c));
        table.pin(c);
        assert_eq!((table.idlest_in(3), table.len_of(3)), (Some(b), 1));
        table.remove(b);
        assert_eq!((table.idlest_in(3), table.len_of(3)), (None, 0));
        assert_eq!(
            (table.find(&1), table.find(&2), table.find(&3)),
            (Some(a), None, Some(c))
        );
    }

    #[test]
    fn growth_keeps_all_keys() {
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
