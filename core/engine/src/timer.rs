//! The timers of one worker, in a hierarchical timing wheel.
//!
//! The wheel (Varghese and Lauck, 1987) has eight levels of 64 slots. A slot of a level covers as much time as the
//! whole level below, and all levels together cover all values of [`Instant`]. A timer is at the level where its tick
//! first differs from the wheel's current tick, and moves down at most once per level. Slots are circular lists of
//! nodes in one vector. A bit for each slot marks occupied slots, and each slot stores the earliest tick that was
//! inserted into it.

use core::mem;

use crate::{FlowId, Instant};
use crate::state::{Reader, StateError, Writer};

#[cfg(test)]
mod tests;

/// A flow's timer, which is stored with the flow and refers to a node of the wheel while it is armed.
///
/// It must be disarmed before the flow's slot is freed; otherwise the wheel would return a flow that has ended, and its
/// node would be lost.
#[derive(Debug, Default)]
pub struct Timer(Option<u32>);

/// The timing wheel of one worker. Arming, disarming and expiry take constant time (amortized); memory is allocated
/// only for more timers than were ever armed at once.
#[derive(Debug)]
pub struct Wheel {
    /// First one list head for each slot, then the head of the list of due timers, then timers. In a list head, `tick`
    /// is the earliest tick that was inserted, and has no meaning while the list is empty.
    nodes: Vec<Node>,
    /// Index of the first free node; free nodes are linked by `next`.
    free: Option<u32>,
    /// For each level, a bit for each slot that contains timers.
    occupied: [u64; LEVELS],
    /// Current tick: all timers up to this tick have been moved to the list of due timers.
    elapsed: u64,
}

/// A node of the timing wheel: a timer, a list head, or a free node.
#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    prev: u32,
    tick: u64,
    /// Flow of the timer; `None` in list heads and free nodes.
    flow: Option<FlowId>,
}

impl Wheel {
    /// Arms a timer: [`Self::expired`] will return `flow` at the first tick (2^20 ns) that is not before `at`. A timer
    /// that is armed for an earlier time is not changed: when it expires, the flow checks its deadlines and arms it
    /// again. So it costs nothing to move a deadline back, as happens with every packet.
    ///
    /// A time in the past is treated as the tick after the last call of `expired`, so that a loop over `expired` ends
    /// even if every flow in it arms its timer for the past.
    pub fn arm(&mut self, timer: &mut Timer, flow: FlowId, at: Instant) {
        let tick = at.0.div_ceil(TICK).max(self.elapsed + 1);
        let node = match timer.0 {
            Some(node) if self.nodes[place(node)].tick <= tick => return,
            Some(node) => {
                self.unlink(node);
                node
            }
            None => self.allocate(),
        };
        timer.0 = Some(node);
        self.nodes[place(node)].flow = Some(flow);
        self.nodes[place(node)].tick = tick;
        self.insert(node);
    }

    /// Disarms a timer, if it is armed.
    pub fn disarm(&mut self, timer: &mut Timer) {
        if let Some(node) = timer.0.take() {
            self.unlink(node);
            self.release(node);
        }
    }

    /// Removes one expired timer and returns its flow, which has to mark its timer as disarmed by [`Timer::fired`].
    ///
    /// The caller repeats the call until it returns `None`.
    pub fn expired(&mut self, now: Instant) -> Option<FlowId> {
        self.advance(now.0 / TICK);
        let node = self.nodes[place(DUE)].next;
        if node == DUE {
            return None;
        }
        self.unlink(node);
        self.release(node)
    }

    /// Returns the time at which [`Self::expired`] will next return a flow; `None` if no timer is armed.
    ///
    /// The time is exact, so that a timer causes only one wake-up. If the earliest timer of a slot was disarmed or
    /// moved, the time is too early, once for that slot: the call of `expired` that finds no due timer there sorts the
    /// slot again.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        let tick = if self.nodes[place(DUE)].next != DUE {
            self.elapsed
        } else {
            let (ring, _) = self.first()?;
            self.nodes[place(ring)].tick
        };
        Some(Instant(tick.saturating_mul(TICK)))
    }

    /// Appends the current tick, and the armed timers with their flows in the order in which they expire at equal times.
    pub(crate) fn save(&self, to: &mut Writer<'_>) {
        let Self {
            nodes,
            free: _,
            occupied: _,
            elapsed,
        } = self;
        to.put(&Instant(elapsed.saturating_mul(TICK)));
        let rings = core::iter::once(DUE).chain(0..DUE);
        let armed: Vec<(FlowId, Instant)> = rings.flat_map(|ring| self.ring(ring)).collect();
        debug_assert!(armed.len() < nodes.len());
        to.put(&armed);
    }

    /// Returns the flows of a circular list, each with the time of its timer.
    fn ring(&self, ring: u32) -> impl Iterator<Item = (FlowId, Instant)> {
        let mut at = self.nodes[place(ring)].next;
        core::iter::from_fn(move || {
            let node = self.nodes[place(at)];
            at = node.next;
            Some((node.flow?, Instant(node.tick.saturating_mul(TICK))))
        })
    }

    /// Reads the current tick, which is not after `now`, into this wheel, which has no timers. Returns the timers to arm.
    pub(crate) fn load(
        &mut self,
        from: &mut Reader<'_>,
        now: Instant,
        most: usize,
    ) -> Result<Vec<(FlowId, Instant)>, StateError> {
        let at: Instant = from.get()?;
        self.elapsed = at.min(now).0 / TICK;
        from.list(most)
    }

    /// Moves all timers that are due at the tick `now` into the list of due timers.
    fn advance(&mut self, now: u64) {
        while let Some((ring, start)) = self.first()
            && start <= now
        {
            self.elapsed = start;
            self.occupied[level_of(ring)] &= !(1 << (ring % SLOTS));
            // The nodes are detached from the list head, and only this function uses them now.
            let mut node = mem::replace(&mut self.nodes[place(ring)].next, ring);
            self.nodes[place(ring)].prev = ring;
            while node != ring {
                let Node { next, tick, .. } = self.nodes[place(node)];
                if tick <= now {
                    self.append(DUE, node);
                } else {
                    self.insert(node);
                }
                node = next;
            }
        }
        self.elapsed = self.elapsed.max(now);
    }

    /// Returns the list head of the slot whose timers expire first, and the tick at which the slot begins. Lower levels
    /// precede higher ones, because all their slots are within the current slot of the levels above.
    fn first(&self) -> Option<(u32, u64)> {
        (0_u32..)
            .zip(self.occupied)
            .find(|(_, occupied)| *occupied != 0)
            .map(|(level, occupied)| {
                let slot = occupied.trailing_zeros();
                let shift = level * BITS;
                let above = self.elapsed >> shift >> BITS << BITS;
                (level * SLOTS + slot, (above | u64::from(slot)) << shift)
            })
    }

    /// Inserts a node, whose tick is in the future, into its slot.
    fn insert(&mut self, node: u32) {
        let tick = self.nodes[place(node)].tick;
        let level = (tick ^ self.elapsed).checked_ilog2().unwrap_or(0) / BITS;
        let slot = (tick >> (level * BITS)) as u32 % SLOTS;
        let ring = level * SLOTS + slot;
        let bit = 1 << slot;
        let occupied = &mut self.occupied[place(level)];
        let earliest = &mut self.nodes[place(ring)].tick;
        if *occupied & bit == 0 || tick < *earliest {
            *earliest = tick;
        }
        *occupied |= bit;
        self.append(ring, node);
    }

    fn append(&mut self, ring: u32, node: u32) {
        let last = mem::replace(&mut self.nodes[place(ring)].prev, node);
        self.nodes[place(last)].next = node;
        self.nodes[place(node)].prev = last;
        self.nodes[place(node)].next = ring;
    }

    fn unlink(&mut self, node: u32) {
        let Node { next, prev, .. } = self.nodes[place(node)];
        self.nodes[place(prev)].next = next;
        self.nodes[place(next)].prev = prev;
        // Both neighbors are the list head, so the list is empty now.
        if next == prev && next < DUE {
            self.occupied[level_of(next)] &= !(1 << (next % SLOTS));
        }
    }

    fn allocate(&mut self) -> u32 {
        if let Some(node) = self.free {
            let next = self.nodes[place(node)].next;
            self.free = (next != END).then_some(next);
            return node;
        }
        let node = u32::try_from(self.nodes.len()).expect("fewer timers than 32 bits count");
        self.nodes.push(Node::ring(node));
        node
    }

    fn release(&mut self, node: u32) -> Option<FlowId> {
        let next = self.free.replace(node).unwrap_or(END);
        let node = &mut self.nodes[place(node)];
        node.next = next;
        node.flow.take()
    }
}

impl Default for Wheel {
    fn default() -> Self {
        Self {
            nodes: (0..=DUE).map(Node::ring).collect(),
            free: None,
            occupied: [0; LEVELS],
            elapsed: 0,
        }
    }
}

impl Node {
    /// Returns the head of an empty circular list.
    const fn ring(index: u32) -> Self {
        Self {
            next: index,
            prev: index,
            tick: 0,
            flow: None,
        }
    }
}

impl Timer {
    /// Returns true if the timer is armed.
    pub(crate) const fn is_armed(&self) -> bool {
        self.0.is_some()
    }

    /// Marks the timer as disarmed, after the wheel has returned its flow.
    pub fn fired(&mut self) {
        self.0 = None;
    }
}

const fn place(index: u32) -> usize {
    index as usize
}

const fn level_of(ring: u32) -> usize {
    place(ring / SLOTS)
}

/// Duration of a tick of the timing wheel in nanoseconds, about a millisecond.
const TICK: u64 = 1 << 20;
/// Number of bits of a tick that select a slot within a level.
const BITS: u32 = 6;
/// Number of slots in a level of the timing wheel.
const SLOTS: u32 = 1 << BITS;
/// Number of levels. 64 bits of nanoseconds contain 44 bits of ticks, for which eight levels of six bits suffice.
const LEVELS: usize = 8;
/// Index of the head of the list of due timers, behind the heads of the slots.
const DUE: u32 = LEVELS as u32 * SLOTS;
/// End mark of the list of free nodes; the node with this index is a list head and never free.
const END: u32 = DUE;
