//! A slab for flows: entries never move in memory, and a lookup with the generation of a removed entry finds nothing.

use crate::state::{Reader, StateError, Writer, check};

/// Number of slots in a chunk. The slab grows by one chunk, without copying entries.
const CHUNK: usize = 256;

/// Indexed storage of entries that grows in chunks and reuses the slot that was freed last.
#[derive(Debug)]
pub struct Slab<T> {
    chunks: Vec<Box<[Slot<T>]>>,
    /// Index of the first slot in the list of free slots.
    free: Option<u32>,
    len: usize,
}

/// A slot of a [`Slab`], in use or free.
#[derive(Debug)]
struct Slot<T> {
    /// Generation of the slot, which is incremented when its entry is removed.
    generation: u16,
    state: SlotState<T>,
}

/// State of a slot: in use with an entry, or free with the index of the next free slot.
#[derive(Debug)]
enum SlotState<T> {
    Free { next: Option<u32> },
    Used(T),
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            free: None,
            len: 0,
        }
    }
}

impl<T> Slab<T> {
    /// Stores the result of `make` in a free slot, and returns the slot's index and generation, which are also the
    /// arguments of `make`.
    ///
    /// # Panics
    /// All 2^32 slots are in use.
    pub fn insert_with(&mut self, make: impl FnOnce(u32, u16) -> T) -> (u32, u16) {
        let (index, generation) = self.vacant();
        let slot = self.slot_mut(index).expect("the free list contains slots");
        let SlotState::Free { next } = slot.state else {
            unreachable!("the free list contains free slots");
        };
        slot.state = SlotState::Used(make(index, generation));
        self.free = next;
        self.len += 1;
        (index, generation)
    }

    /// Returns the index and generation that the next [`Self::insert_with`] will use, so that objects that contain them
    /// can be created before.
    pub fn vacant(&mut self) -> (u32, u16) {
        let index = match self.free {
            Some(index) => index,
            None => self.grow(),
        };
        self.free = Some(index);
        (index, self.generation(index))
    }

    /// Returns the entry of a slot; `None` if the slot is free or has another generation.
    #[must_use]
    pub fn get(&self, index: u32, generation: u16) -> Option<&T> {
        match self.slot(index)? {
            Slot {
                generation: now,
                state: SlotState::Used(value),
            } if *now == generation => Some(value),
            _ => None,
        }
    }

    /// Returns the entry of a slot like [`Self::get`], for modification.
    #[must_use]
    pub fn get_mut(&mut self, index: u32, generation: u16) -> Option<&mut T> {
        match self.slot_mut(index)? {
            Slot {
                generation: now,
                state: SlotState::Used(value),
            } if *now == generation => Some(value),
            _ => None,
        }
    }

    /// Returns the entry of a slot that the caller knows to be in use, because one of its tables or lists contains the
    /// index.
    ///
    /// # Panics
    /// The slot is free.
    #[must_use]
    pub fn at(&self, index: u32) -> &T {
        match self.slot(index).map(|slot| &slot.state) {
            Some(SlotState::Used(value)) => value,
            Some(SlotState::Free { .. }) | None => panic!("slot {index} is free"),
        }
    }

    /// Returns the entry of a slot like [`Self::at`], for modification.
    ///
    /// # Panics
    /// The slot is free.
    #[must_use]
    pub fn at_mut(&mut self, index: u32) -> &mut T {
        match self.slot_mut(index).map(|slot| &mut slot.state) {
            Some(SlotState::Used(value)) => value,
            Some(SlotState::Free { .. }) | None => panic!("slot {index} is free"),
        }
    }

    /// Returns true if the slot is in use.
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        matches!(
            self.slot(index),
            Some(Slot {
                state: SlotState::Used(_),
                ..
            })
        )
    }

    /// Removes and returns the entry of a slot, and increments the slot's generation.
    ///
    /// # Panics
    /// The slot is free.
    pub fn remove(&mut self, index: u32) -> T {
        let next = self.free;
        let Some(slot) = self.slot_mut(index) else {
            panic!("slot {index} does not exist");
        };
        match core::mem::replace(&mut slot.state, SlotState::Free { next }) {
            SlotState::Used(value) => {
                slot.generation = slot.generation.wrapping_add(1);
                self.free = Some(index);
                self.len -= 1;
                value
            }
            SlotState::Free { .. } => panic!("slot {index} is free"),
        }
    }

    /// Returns the current generation of a slot, in use or free.
    ///
    /// # Panics
    /// The slot does not exist.
    #[must_use]
    pub fn generation(&self, index: u32) -> u16 {
        match self.slot(index) {
            Some(slot) => slot.generation,
            None => panic!("slot {index} does not exist"),
        }
    }

    /// Returns the number of slots in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no slot is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns index, generation and entry of every slot in use, in the order of the slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u16, &T)> {
        (0..)
            .zip(self.chunks.iter().flatten())
            .filter_map(|(index, slot)| match &slot.state {
                SlotState::Used(value) => Some((index, slot.generation, value)),
                SlotState::Free { .. } => None,
            })
    }

    /// Returns index, generation and entry of the slots in use among the `len` slots from `first` on.
    pub fn part(&self, first: u32, len: u32) -> impl Iterator<Item = (u32, u16, &T)> {
        (first..first.saturating_add(len)).filter_map(|index| {
            let slot = self.slot(index)?;
            match &slot.state {
                SlotState::Used(value) => Some((index, slot.generation, value)),
                SlotState::Free { .. } => None,
            }
        })
    }

    /// Returns the total number of slots, in use or free.
    #[must_use]
    pub fn slots(&self) -> u32 {
        u32::try_from(self.chunks.len() * CHUNK).unwrap_or(u32::MAX)
    }

    /// Adds a chunk of free slots, and returns the index of its first slot, which is the new head of the free list.
    fn grow(&mut self) -> u32 {
        let first = self.chunks.len() * CHUNK;
        let index = |at: usize| u32::try_from(first + at).expect("fewer than 2^32 slots");
        let chunk = (0..CHUNK).map(|at| Slot {
            generation: 0,
            state: SlotState::Free {
                next: (at + 1 < CHUNK).then(|| index(at + 1)),
            },
        });
        self.chunks.push(chunk.collect());
        index(0)
    }

    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let index = index as usize;
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T>> {
        let index = index as usize;
        self.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)
    }
}

impl<T> Slab<T> {
    /// Appends the slots in use, each with what `entry` appends, the generations of all slots, and the order of the free ones.
    pub(crate) fn save(&self, to: &mut Writer<'_>, mut entry: impl FnMut(&mut Writer<'_>, u32, u16, &T)) {
        to.count(self.chunks.len());
        for slot in self.chunks.iter().flatten() {
            to.put(&slot.generation);
        }
        to.count(self.slots() as usize - self.len);
        let mut free = self.free;
        while let Some(index) = free {
            to.put(&index);
            let Some(SlotState::Free { next }) = self.slot(index).map(|slot| &slot.state) else {
                unreachable!("the free list contains free slots");
            };
            free = *next;
        }
        for (index, generation, value) in self.iter() {
            to.frame(|to| entry(to, index, generation, value));
        }
    }

    /// Reads what [`Self::save`] has written, with at most `most` slots, rounded up. `entry` reads an entry by its index and
    /// generation; if it returns `None`, the slot is free.
    pub(crate) fn load(
        from: &mut Reader<'_>,
        most: usize,
        mut entry: impl FnMut(&mut Reader<'_>, u32, u16) -> Result<Option<T>, StateError>,
    ) -> Result<Self, StateError> {
        let mut slab = Self::default();
        let chunks = from.count(most.div_ceil(CHUNK) + 1)?;
        let generations = (0..chunks * CHUNK)
            .map(|_| from.get())
            .collect::<Result<Vec<u16>, _>>()?;
        for _ in 0..chunks {
            slab.grow();
        }
        let mut is_free = vec![false; generations.len()];
        let free: Vec<u32> = from.list(generations.len())?;
        for &index in &free {
            let place = is_free.get_mut(index as usize).ok_or(StateError::Malformed)?;
            check(!core::mem::replace(place, true))?;
        }
        let mut refused = Vec::new();
        for ((index, generation), is_free) in (0_u32..).zip(generations).zip(is_free) {
            let slot = slab.slot_mut(index).expect("the slab has grown");
            slot.generation = generation;
            if is_free {
                continue;
            }
            match from.frame(|from| entry(from, index, generation))? {
                Some(value) => {
                    slot.state = SlotState::Used(value);
                    slab.len += 1;
                }
                None => {
                    slot.generation = generation.wrapping_add(1);
                    refused.push(index);
                }
            }
        }
        let mut next = None;
        for index in refused.into_iter().chain(free).rev() {
            let slot = slab.slot_mut(index).expect("the slab has grown");
            slot.state = SlotState::Free { next };
            next = Some(index);
        }
        slab.free = next;
        Ok(slab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_generation_finds_nothing() {
        let mut slab = Slab::default();
        let (index, first) = slab.insert_with(|index, generation| (index, generation));
        assert_eq!(slab.get(index, first), Some(&(index, first)));
        assert_eq!(slab.remove(index), (index, first));
        assert_eq!(slab.get(index, first), None);

        let (again, second) = slab.insert_with(|index, generation| (index, generation));
        assert_eq!(again, index, "the slot that was freed last is reused first");
        assert_ne!(second, first);
        assert_eq!(slab.get_mut(index, first), None);
        assert_eq!(slab.at(index), &(index, second));
    }

    #[test]
    fn growth_does_not_move_slots() {
        let mut slab = Slab::default();
        let (index, _) = slab.insert_with(|_, _| 0_usize);
        let before: *const usize = slab.at(index);
        for value in 1..3 * CHUNK {
            slab.insert_with(|_, _| value);
        }
        assert_eq!(before, slab.at(index) as *const usize);
        assert_eq!(slab.len(), 3 * CHUNK);
    }

    #[test]
    fn iteration_skips_free_slots() {
        let mut slab = Slab::default();
        for value in 0..CHUNK + 2 {
            slab.insert_with(|_, _| value);
        }
        slab.remove(1);
        slab.remove(256);
        let values: Vec<_> = slab
            .iter()
            .map(|(index, _, value)| (index as usize, *value))
            .collect();
        let expected: Vec<_> = (0..CHUNK + 2)
            .filter(|value| ![1, 256].contains(value))
            .map(|value| (value, value))
            .collect();
        assert_eq!(values, expected);
    }

    #[test]
    #[should_panic(expected = "slot 0 is free")]
    fn removing_a_free_slot_panics() {
        let mut slab = Slab::default();
        slab.insert_with(|_, _| ());
        slab.remove(0);
        slab.remove(0);
    }
}
