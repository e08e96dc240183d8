//! A queue whose memory, size and features the first bytes of a script select.

use pontoon_ring::memory::Window;
use pontoon_ring::{Features, Layout};

use crate::ring::model::ModelMemory;
use crate::ring::racy::RacyMemory;
use crate::script::Script;

/// Bytes of memory: the rings, and as much again for indirect tables and buffers.
pub(super) const MEMORY: usize = 4096;

pub(super) struct ScriptedQueue {
    pub(super) memory: ModelMemory,
    /// The same memory, at an address. If the script selects it, words change between two loads.
    pub(super) window: Window<RacyMemory>,
    pub(super) layout: Layout,
    pub(super) features: Features,
}

impl ScriptedQueue {
    /// Returns the queue at the address `origin`.
    pub(super) fn new(script: &mut Script<'_>, origin: u64) -> Self {
        let size = 1 << script.below(6);
        let options = script.byte();
        let features = Features {
            event_idx: options & 1 != 0,
            indirect: options & 2 != 0,
        };
        let memory = ModelMemory::new(MEMORY);
        let seed = if options & 4 == 0 {
            0
        } else {
            1 + u64::from(script.u32())
        };
        Self {
            window: Window::new(RacyMemory::new(&memory, seed), origin),
            memory,
            layout: Layout::contiguous(size, origin),
            features,
        }
    }
}
