//! Comparison of the index arithmetic with counters that never wrap. The tests are skipped under Miri, as they take
//! millions of steps and the code is safe.

#![cfg(not(miri))]

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{Index, Size};

/// Computes [`Index::passes`] by examining every entry.
fn passes_naively(old: u64, entries: u16, event: u16) -> bool {
    (old..old + u64::from(entries)).any(|entry| low(entry) == event)
}

fn low(counter: u64) -> u16 {
    u16::try_from(counter % 65_536).unwrap()
}

#[test]
fn valid_sizes_are_powers_of_two() {
    let sizes: Vec<u16> = (0..=u16::MAX).filter(|size| Size::new(*size).is_some()).collect();
    let powers: Vec<u16> = (0..16).map(|bits| 1 << bits).collect();
    assert_eq!(sizes, powers);
}

#[test]
fn slot_is_index_modulo_size() {
    for bits in 0..16 {
        let size = Size::new(1 << bits).unwrap();
        for index in 0..=u16::MAX {
            assert_eq!(Index::new(index).slot(size), index % size.get());
        }
    }
}

#[test]
fn passes_matches_naive_search_for_short_moves() {
    for old in [0, 1, 0x7fff, 0x8000, 0xfff8, 0xffff] {
        for entries in 0..=40 {
            for event in 0..=u16::MAX {
                let from = Index::new(low(old));
                assert_eq!(
                    from.passes(from.forward(entries), Index::new(event)),
                    passes_naively(old, entries, event),
                    "{old} + {entries}, event {event}"
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn index_arithmetic_matches_wide_counters(start: u32, forward: u16, back: u16) {
        let counter = u64::from(start) + 65_536;
        let index = Index::new(low(counter));
        prop_assert_eq!(index.forward(forward).get(), low(counter + u64::from(forward)));
        prop_assert_eq!(index.back(back).get(), low(counter - u64::from(back)));
        prop_assert_eq!(index.until(index.forward(forward)), forward);
        prop_assert_eq!(index.back(back).until(index), back);
    }

    #[test]
    fn passes_matches_naive_search(old: u32, entries in 0..=32_768_u16, event: u16) {
        let from = Index::new(low(old.into()));
        prop_assert_eq!(
            from.passes(from.forward(entries), Index::new(event)),
            passes_naively(old.into(), entries, event)
        );
    }

    #[test]
    fn event_is_passed_in_one_part_of_a_move(old: u16, first in 0..=16_384_u16, second in 0..=16_384_u16, event: u16) {
        let (old, event) = (Index::new(old), Index::new(event));
        let middle = old.forward(first);
        let end = middle.forward(second);
        let parts = u8::from(old.passes(middle, event)) + u8::from(middle.passes(end, event));
        prop_assert_eq!(parts, u8::from(old.passes(end, event)));
    }

    #[test]
    fn entries_of_a_full_ring_have_distinct_slots(start: u16, bits in 0..12_u32) {
        let size = Size::new(1 << bits).unwrap();
        let mut seen = vec![false; size.get().into()];
        for entry in 0..size.get() {
            let slot = usize::from(Index::new(start).forward(entry).slot(size));
            prop_assert!(!std::mem::replace(&mut seen[slot], true));
        }
    }
}
