//! Ledger of TCP connections and of the guest's Ethernet address, in memory that the engine shares with the supervisor and
//! with the engine that replaces it.
//!
//! An engine may crash at any instruction, and a compromised engine may have written anything. The worst effect of either
//! is that the next engine sends invalid segments to the guest.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use pontoon_engine::WorkerId;
use pontoon_engine::ledger::{Ends, Ledger};
use pontoon_sys::inherited;
use pontoon_wire::Mac;

/// Ledger in shared memory, with slots for the connections of every worker.
#[derive(Clone, Copy, Debug)]
pub struct SharedLedger {
    guest: Option<&'static AtomicU64>,
    words: &'static [AtomicU64],
    /// Number of slots of each worker.
    slots: usize,
}

/// Part of the ledger that belongs to one worker.
#[derive(Debug)]
pub(crate) struct LedgerPart {
    guest: Option<&'static AtomicU64>,
    /// Number of slots that have been used since the start, counted from the first. The others are never read, because even
    /// a read of shared memory allocates its page.
    used: Option<&'static AtomicU64>,
    words: &'static [AtomicU64],
}

/// Number of 64-bit words of a slot: one for the flags and both ports, then both addresses.
const SLOT: usize = 5;

/// Flag of an entry that is in use: the slot has a connection, or the guest's address is known.
const SET: u64 = 1 << 63;

/// Flag of a connection over IPv6.
const V6: u64 = 1 << 62;

impl SharedLedger {
    /// Creates a ledger with slots for `slots` connections of each of `workers` workers, before the first engine is forked.
    ///
    /// # Errors
    /// No memory or address space.
    pub fn new(workers: u8, slots: u32) -> io::Result<Self> {
        let slots = slots as usize + SPARE;
        let words = inherited::words(1 + part_len(slots) * usize::from(workers))?;
        let (guest, words) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let guest = Some(guest);
        Ok(Self { guest, words, slots })
    }

    /// Returns an empty ledger, for an engine that is never restarted.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            guest: None,
            words: &[],
            slots: 0,
        }
    }

    /// Returns the guest's Ethernet address as the last engine has stored it.
    pub(crate) fn guest(&self) -> Option<Mac> {
        let word = self.guest?.load(Ordering::Relaxed);
        let [_, _, mac @ ..] = word.to_be_bytes();
        (word & SET != 0).then_some(Mac(mac))
    }

    pub(crate) fn part(&self, worker: WorkerId) -> LedgerPart {
        let len = part_len(self.slots);
        let start = len * usize::from(worker.0);
        let part = self.words.get(start..start + len).unwrap_or_default();
        let (used, words) = part.split_first().unzip();
        LedgerPart {
            guest: self.guest,
            used,
            words: words.unwrap_or_default(),
        }
    }
}

/// Returns the number of words of a worker's part: one for the number of used slots, then the slots.
const fn part_len(slots: usize) -> usize {
    1 + slots * SLOT
}

/// Slots beyond the limit on flows: each worker may exceed the limit by one flow, and a slot is taken before another is
/// freed.
const SPARE: usize = 64;

impl LedgerPart {
    /// Removes and returns the connections that an earlier engine has left in the ledger.
    pub(crate) fn take(&self) -> Vec<Ends> {
        let used = self.used.map_or(0, |used| used.load(Ordering::Acquire));
        let used = usize::try_from(used).unwrap_or(usize::MAX);
        self.words
            .chunks_exact(SLOT)
            .take(used)
            .filter_map(take)
            .collect()
    }

    fn slot(&self, slot: u32) -> Option<&[AtomicU64]> {
        self.words.chunks_exact(SLOT).nth(slot as usize)
    }
}

impl Ledger for LedgerPart {
    fn enter(&self, slot: u32, ends: Ends) {
        let (Some([head, rest @ ..]), Some(used)) = (self.slot(slot), self.used) else {
            return;
        };
        // Only this worker writes the number. It includes the slot before the slot is complete.
        if used.load(Ordering::Relaxed) <= u64::from(slot) {
            used.store(u64::from(slot) + 1, Ordering::Release);
        }
        let v6 = if ends.guest.is_ipv6() { V6 } else { 0 };
        let ports = u64::from(ends.guest.port()) << 16 | u64::from(ends.remote.port());
        for (pair, end) in rest.chunks_exact(2).zip([ends.guest, ends.remote]) {
            let (high, low) = halves(end.ip());
            pair[0].store(high, Ordering::Relaxed);
            pair[1].store(low, Ordering::Relaxed);
        }
        // The head is written last: a slot whose flag is set is complete.
        head.store(SET | v6 | ports, Ordering::Release);
    }

    fn strike(&self, slot: u32) {
        if let Some([head, ..]) = self.slot(slot) {
            head.store(0, Ordering::Release);
        }
    }

    fn guest_moved(&self, Mac([a, b, c, d, e, f]): Mac) {
        let word = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        if let Some(guest) = self.guest {
            guest.store(SET | word, Ordering::Relaxed);
        }
    }
}

fn take(slot: &[AtomicU64]) -> Option<Ends> {
    let [head, rest @ ..] = slot else {
        return None;
    };
    let set = head.load(Ordering::Acquire);
    if set & SET == 0 {
        return None;
    }
    head.store(0, Ordering::Relaxed);
    let end = |pair: &[AtomicU64], port: u64| {
        let [high, low] = pair else {
            return None;
        };
        let bits = u128::from(high.load(Ordering::Relaxed)) << 64 | u128::from(low.load(Ordering::Relaxed));
        let address = match set & V6 {
            0 => u32::try_from(bits).ok().map(|bits| IpAddr::V4(bits.into()))?,
            _ => IpAddr::V6(Ipv6Addr::from(bits)),
        };
        Some(SocketAddr::new(address, u16::try_from(port & 0xffff).ok()?))
    };
    Some(Ends {
        guest: end(rest.get(..2)?, set >> 16)?,
        remote: end(rest.get(2..4)?, set)?,
    })
}

fn halves(address: IpAddr) -> (u64, u64) {
    let bits = match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    ((bits >> 64) as u64, bits as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(guest: &str, remote: &str) -> Ends {
        Ends {
            guest: guest.parse().unwrap(),
            remote: remote.parse().unwrap(),
        }
    }

    fn used(part: &LedgerPart) -> u64 {
        part.used.unwrap().load(Ordering::Relaxed)
    }

    #[test]
    fn entries_that_were_not_removed_are_returned() {
        let shared = SharedLedger::new(2, 100).unwrap();
        let (first, second) = (shared.part(WorkerId(0)), shared.part(WorkerId(1)));
        let v4 = ends("10.0.2.15:40000", "203.0.113.7:80");
        let v6 = ends("[fd70:6f6e:746f::15]:65535", "[2001:db8::7]:1");
        first.enter(0, v4);
        first.enter(1, v4);
        first.strike(0);
        first.enter(163, v6);
        assert_eq!(used(&first), 164);
        assert_eq!(used(&second), 0, "no slot of this part would be read");
        second.enter(0, v6);
        assert_eq!(first.take(), [v4, v6]);
        assert!(first.take().is_empty());
        assert_eq!(second.take(), [v6]);
    }

    #[test]
    fn the_guests_address_is_shared_by_all_workers() {
        let shared = SharedLedger::new(2, 0).unwrap();
        assert_eq!(shared.guest(), None);
        for (worker, mac) in [(1, Mac([0xff; 6])), (0, Mac([0; 6]))] {
            shared.part(WorkerId(worker)).guest_moved(mac);
            assert_eq!(shared.guest(), Some(mac));
        }
    }

    #[test]
    fn connections_beyond_the_capacity_are_left_out() {
        let shared = SharedLedger::new(1, 0).unwrap();
        let part = shared.part(WorkerId(0));
        part.enter(64, ends("10.0.2.15:1", "10.0.2.2:1"));
        part.strike(u32::MAX);
        assert!(part.take().is_empty());
        shared
            .part(WorkerId(7))
            .enter(0, ends("10.0.2.15:1", "10.0.2.2:1"));
    }

    #[test]
    fn arbitrary_words_are_decoded_or_ignored() {
        let shared = SharedLedger::new(1, 0).unwrap();
        for word in shared.words {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!(shared.part(WorkerId(0)).take().len(), 64);
        for word in shared.words {
            word.store(SET | 1, Ordering::Relaxed);
        }
        assert!(shared.part(WorkerId(0)).take().is_empty());
    }
}
