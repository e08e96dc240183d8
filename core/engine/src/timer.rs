//! The timers of one worker, in a timing wheel.
//!
//! A hierarchical wheel (Varghese and Lauck, 1987): eight levels of 64 slots, each level's slot as wide as the whole
//! level below, so that together they cover all values of [`Instant`]. A timer lies at the level where its
//! tick first differs from the wheel's, and moves down at most once per level. Slots are rings of nodes in one vector;
//! a bit per slot marks occupied ones, and each slot stores the earliest tick that was put into it.

use core::mem;

use crate::{FlowId, Instant};

#[cfg(test)]
mod tests;

/// A flow's place in the wheel, stored in the flow's slot.
///
/// It must be disarmed before the slot is freed: the wheel would return a flow that has ended, and its node would be lost.
#[derive(Debug, Default)]
pub struct Timer(Option<u32>);

/// All timers of one worker: O(1) to arm, disarm and expire (amortised), and no allocation below the highest number of
/// timers that were ever armed at once.
#[derive(Debug)]
pub struct Wheel {
    /// First the slots' rings, then the ring of those that are due, then timers. In a ring's own node `tick` is the
    /// earliest one that was put in, and meaningless while the ring is empty.
    nodes: Vec<Node>,
    /// Free nodes, linked by `next`.
    free: Option<u32>,
    /// Which slots of each level have timers.
    occupied: [u64; LEVELS],
    /// Everything up to this tick has been expired.
    elapsed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    prev: u32,
    tick: u64,
    /// `None` in rings and free nodes.
    flow: Option<FlowId>,
}

impl Wheel {
    /// Arms a timer: [`Self::expired`] returns `flow` at the first tick (2^20 ns) that is not before `at`. A timer that is
    /// armed for an earlier time is unchanged: when it expires, the flow checks its own deadlines and arms it again. So
    /// a deadline that moves back, as with every packet, costs nothing.
    ///
    /// A time that has passed counts as the tick after the last call of `expired`: a loop over `expired` ends even if
    /// every flow in it arms for the past.
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

    /// Disarms the timer.
    pub fn disarm(&mut self, timer: &mut Timer) {
        if let Some(node) = timer.0.take() {
            self.unlink(node);
            self.release(node);
        }
    }

    /// Takes one flow whose timer has expired, if any. The caller marks its timer as disarmed by [`Timer::fired`].
    ///
    /// Call it until it returns `None`.
    pub fn expired(&mut self, now: Instant) -> Option<FlowId> {
        self.advance(now.0 / TICK);
        let node = self.nodes[place(DUE)].next;
        if node == DUE {
            return None;
        }
        self.unlink(node);
        self.release(node)
    }

    /// Returns the time at which [`Self::expired`] next returns a flow; `None` while no timer is armed.
    ///
    /// The time is exact, so that a timer costs one wake-up. Only if the earliest timer of a slot was disarmed or moved, the
    /// time is too early, once for that slot: the call of `expired` that finds no timer there sorts the slot again.
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

    /// Moves all timers that are due at `now` into the ring of due timers.
    fn advance(&mut self, now: u64) {
        while let Some((ring, start)) = self.first()
            && start <= now
        {
            self.elapsed = start;
            self.occupied[level_of(ring)] &= !(1 << (ring % SLOTS));
            // The ring's nodes become a chain that only this function uses.
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

    /// The slot whose timers are due before all others', and the tick at which it begins. Lower levels come first:
    /// all of their slots lie within the current slot of the levels above.
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

    /// Inserts a node whose tick is in the future into its slot.
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
        // Both neighbours are the same node, the ring itself, which is empty now.
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
    /// An empty ring.
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

/// Nanoseconds in a tick: about a millisecond.
const TICK: u64 = 1 << 20;
/// Bits of a tick that select a slot within a level.
const BITS: u32 = 6;
/// Slots of a level.
const SLOTS: u32 = 1 << BITS;
/// Levels: 64 bits of nanoseconds have 44 bits of ticks.
const LEVELS: usize = 8;
/// The ring of due timers, after those of the slots.
const DUE: u32 = LEVELS as u32 * SLOTS;
/// The end of the list of free nodes: this node is a ring and never free.
const END: u32 = DUE;
