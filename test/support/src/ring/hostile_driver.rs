//! Runs the device side of a virtqueue against a scripted hostile driver.

use std::collections::VecDeque;

use pontoon_ring::Access;
use pontoon_ring::device::{Chain, Device, DeviceQueue, Piece, State, VirtqueueError};
use pontoon_ring::memory::{Area, Window};

use crate::ring::racy::RacyMemory;
use crate::ring::scripted_queue::{MEMORY, ScriptedQueue};
use crate::script::Script;

const ORIGIN: u64 = 0x1000;

/// Runs a script. Panics if the device panics or returns an impossible result.
pub fn run(script: &[u8]) {
    let mut script = Script(script);
    let queue = ScriptedQueue::new(&mut script, ORIGIN);
    queue.memory.copy_in(0, &[0; MEMORY / 2]);
    let mut runner = DeviceRunner {
        device: Device::new(queue.layout, queue.features, State::default()).unwrap(),
        queue,
        taken: VecDeque::new(),
    };
    while let Some(step) = script.next_byte() {
        runner.step(step, &mut script);
    }
}

/// The device under test, and the memory that it shares with the hostile driver.
struct DeviceRunner {
    queue: ScriptedQueue,
    device: Device,
    taken: VecDeque<Chain>,
}

impl DeviceRunner {
    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 16 {
            0 | 1 => self.offer(script),
            2 | 3 => self.describe(script),
            4 => {
                let at = script.below(MEMORY);
                self.queue.memory.copy_in(at, &[script.byte()]);
            }
            5 => {
                let at = script.below(MEMORY / 8) * 8;
                let word = u64::from(script.u32()) << 32 | u64::from(script.u32());
                self.queue.memory.store_u64(at, word);
            }
            6 | 7 => self.poll_and_pop(script.below(8)),
            8 => self.take(script.u16().into()),
            9 => self.put(script.byte()),
            10 => self.put_frame(script.below(4), script.u16()),
            11 => drop(self.queue().publish()),
            12 => self.rearm(),
            13 => self.queue().suppress(),
            14 => self.rewind(script.below(4)),
            _ => self.restart(script.byte()),
        }
        assert_eq!(usize::from(self.device.taken()), self.taken.len());
        assert!(
            self.taken.len() <= self.queue.layout.size.into(),
            "holds more chains than there are descriptors"
        );
    }

    /// Adds chains to the available ring, most of the time valid ones.
    fn offer(&mut self, script: &mut Script<'_>) {
        let ring = (self.queue.layout.available - ORIGIN) as usize;
        let index = self
            .queue
            .memory
            .load_u16(ring + 2, std::sync::atomic::Ordering::Relaxed);
        let count = script.below(4) as u16;
        for entry in 0..count {
            let slot = usize::from(index.wrapping_add(entry) % self.queue.layout.size);
            self.queue
                .memory
                .copy_in(ring + 4 + 2 * slot, &[script.byte() & 0x3f, 0]);
        }
        let index = index.wrapping_add(count);
        self.queue.memory.copy_in(ring + 2, &index.to_le_bytes());
    }

    /// Writes a descriptor to the descriptor table or elsewhere, most of the time a plausible one.
    fn describe(&mut self, script: &mut Script<'_>) {
        let kind = script.byte();
        let at = if kind & 1 == 0 {
            16 * script.below(self.queue.layout.size.into())
        } else {
            MEMORY / 2 + script.below(MEMORY / 2 - 16)
        };
        let addr = match kind >> 1 & 7 {
            0..=4 => ORIGIN + MEMORY as u64 / 2 + script.below(MEMORY / 2) as u64,
            5 => ORIGIN + MEMORY as u64 - script.below(64) as u64,
            6 => u64::MAX - u64::from(script.byte()),
            _ => u64::from(script.u32()),
        };
        let len = match kind >> 4 & 7 {
            0..=4 => 16 * (1 + script.below(8) as u32),
            5 => script.u16().into(),
            6 => u32::MAX - u32::from(script.byte()),
            _ => 0,
        };
        let flags = if kind & 0x80 == 0 {
            script.byte() & 7
        } else {
            script.byte()
        };
        let next = script.byte() & 0x1f;
        self.queue.memory.copy_in(at, &addr.to_le_bytes());
        self.queue.memory.copy_in(at + 8, &len.to_le_bytes());
        self.queue.memory.copy_in(at + 12, &[flags, 0, next, 0]);
    }

    fn poll_and_pop(&mut self, most: usize) {
        let size = self.queue.layout.size;
        let waiting = self.call(|queue| queue.poll());
        assert!(waiting.is_err() || waiting.is_ok_and(|waiting| waiting <= size));
        for _ in 0..most {
            let mut pieces = Vec::new();
            let popped = self.call(|queue| queue.pop(|piece| pieces.push(piece)));
            assert!(pieces.len() <= size.into(), "more pieces than descriptors");
            let Ok(Some(chain)) = popped else {
                return;
            };
            check(chain, &pieces);
            self.taken.push_back(chain);
        }
    }

    fn take(&mut self, room: u32) {
        let mut chains = [Chain::default(); 8];
        let before = self.device.taken();
        let mut bytes = 0;
        match self.call(|queue| queue.take(room, &mut chains, |piece| bytes += piece.area.len())) {
            Ok(Some(count)) => {
                let chains = &chains[..count];
                assert_eq!(
                    bytes,
                    chains.iter().map(|chain| chain.writable as usize).sum::<usize>()
                );
                assert!(bytes >= room as usize);
                self.taken.extend(chains);
            }
            Ok(None) => assert_eq!(self.device.taken(), before),
            // Chains that were taken before the error remain taken until the queue is created again.
            Err(_) => self
                .taken
                .extend(&chains[..usize::from(self.device.taken() - before)]),
        }
    }

    fn put(&mut self, len: u8) {
        if let Some(chain) = self.taken.pop_front() {
            self.queue().put(chain, u32::from(len).min(chain.writable));
        }
    }

    /// Returns at most `most` taken chains with a frame of at most `len` bytes. Chains that the frame does not need
    /// remain taken.
    fn put_frame(&mut self, most: usize, len: u16) {
        let count = most.min(self.taken.len());
        let chains: Vec<Chain> = self.taken.iter().take(count).copied().collect();
        let room: u64 = chains.iter().map(|chain| u64::from(chain.writable)).sum();
        let used = self.queue().put_frame(&chains, room.min(len.into()) as u32);
        assert!(used <= count as u16);
        self.taken.drain(..usize::from(used));
    }

    fn rearm(&mut self) {
        let size = self.queue.layout.size;
        let waiting = self.call(|queue| queue.rearm());
        assert!(waiting.is_err() || waiting.is_ok_and(|waiting| waiting <= size));
    }

    fn rewind(&mut self, most: usize) {
        // Chains are returned oldest first, so the newest chains were taken last.
        let back = most.min(self.taken.len());
        self.queue().rewind(back as u16);
        self.taken.truncate(self.taken.len() - back);
    }

    /// Creates the queue again, either as the driver does, at any index, or as a new device that takes the chains in
    /// flight again.
    fn restart(&mut self, start: u8) {
        let _ = self.queue().publish();
        if self.device.broken().is_some() || start & 1 == 0 {
            let index = u16::from(start) << 8 | 0xff;
            let available = (self.queue.layout.available - ORIGIN) as usize;
            self.queue.memory.copy_in(available + 2, &index.to_le_bytes());
            self.taken.clear();
            let state = State {
                available: index,
                used: index,
            };
            self.device = Device::new(self.queue.layout, self.queue.features, state).unwrap();
            return;
        }
        let state = self.device.state();
        self.device = Device::new(self.queue.layout, self.queue.features, state).unwrap();
        for place in 0..self.taken.len() {
            let head = self.taken[place].head;
            let mut pieces = Vec::new();
            if let Ok(chain) = self.call(|queue| queue.chain(head, |piece| pieces.push(piece))) {
                check(chain, &pieces);
                self.taken[place] = chain;
            }
        }
    }

    fn queue(&mut self) -> DeviceQueue<'_, &Window<RacyMemory>> {
        self.device.attach(&self.queue.window).unwrap()
    }

    /// Calls a method of the device, and checks that every call after an error returns the same error.
    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut DeviceQueue<'_, &Window<RacyMemory>>) -> Result<T, VirtqueueError>,
    ) -> Result<T, VirtqueueError> {
        let before = self.device.broken();
        let result = call(&mut self.queue());
        let error = result.as_ref().err().copied();
        assert_eq!(error, self.device.broken());
        assert!(before.is_none() || before == error);
        assert!(error.is_none_or(|error| !error.to_string().is_empty()));
        result
    }
}

/// Checks that the buffers are those of the whole chain, in order. The memory model checks that they are within
/// memory.
fn check(chain: Chain, pieces: &[Piece<RacyMemory>]) {
    assert!(pieces.is_sorted_by_key(|piece| piece.access == Access::Writable));
    let bytes = |access| {
        let pieces = pieces.iter().filter(move |piece| piece.access == access);
        pieces.map(|piece| piece.area.len() as u64).sum::<u64>()
    };
    assert_eq!(bytes(Access::Readable), u64::from(chain.readable));
    assert_eq!(bytes(Access::Writable), u64::from(chain.writable));
    assert!(pieces.iter().all(|piece| !piece.area.is_empty()));
}
