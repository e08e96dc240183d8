//! Runs the driver side of a virtqueue against a scripted hostile device.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use pontoon_ring::driver::{Buffer, Driver, DriverQueue, Slot, VirtqueueError};
use pontoon_ring::memory::{Area, Window};
use pontoon_ring::{Features, Layout};

use crate::ring::racy::RacyMemory;
use crate::ring::scripted_queue::{MEMORY, ScriptedQueue};
use crate::script::Script;

const ORIGIN: u64 = 0x4000;

/// Runs a script. Panics if the driver panics or returns an impossible result.
pub fn run(script: &[u8]) {
    let mut script = Script(script);
    let queue = ScriptedQueue::new(&mut script, ORIGIN);
    let mut runner = DriverRunner {
        driver: driver(&queue.window, queue.layout, queue.features),
        queue,
        next_tag: 0,
        out: HashMap::new(),
    };
    while let Some(step) = script.next_byte() {
        runner.step(step, &mut script);
    }
}

fn driver(window: &Window<RacyMemory>, layout: Layout, features: Features) -> Driver<Vec<Slot>> {
    Driver::new(
        window,
        layout,
        features,
        vec![Slot::default(); layout.size.into()],
    )
    .unwrap()
}

/// A chain that the driver has added and the device has not returned.
struct PendingChain {
    room: u32,
    descriptors: u16,
}

/// The driver under test, and the memory that it shares with the hostile device.
struct DriverRunner {
    queue: ScriptedQueue,
    driver: Driver<Vec<Slot>>,
    next_tag: u32,
    out: HashMap<u32, PendingChain>,
}

impl DriverRunner {
    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 16 {
            0..=2 => self.add(script),
            3 => drop(self.queue().publish()),
            4..=6 => self.give_back(script),
            7 => self.forge(script),
            8 => {
                let at = script.below(MEMORY);
                self.queue.memory.copy_in(at, &[script.byte()]);
            }
            9 => {
                let at = script.below(MEMORY / 8) * 8;
                self.queue
                    .memory
                    .store_u64(at, u64::from(script.u32()) << 32 | u64::from(script.u32()));
            }
            10..=12 => self.poll_and_reap(script.below(8)),
            13 => drop(self.call(|queue| queue.rearm())),
            14 => self.queue().suppress(),
            _ if self.driver.broken().is_some() => {
                self.driver = driver(&self.queue.window, self.queue.layout, self.queue.features);
                self.out.clear();
            }
            _ => {}
        }
        let descriptors: u16 = self.out.values().map(|out| out.descriptors).sum();
        assert_eq!(
            self.driver.free() + descriptors,
            self.queue.layout.size,
            "lost descriptors"
        );
        assert_eq!(usize::from(self.driver.outstanding()), self.out.len());
    }

    fn add(&mut self, script: &mut Script<'_>) {
        let readable = script.below(3);
        let writable = script.below(3);
        let len = u32::from(script.byte());
        let mut buffers = vec![Buffer::readable(ORIGIN, len); readable];
        buffers.extend(vec![Buffer::writable(ORIGIN, len); writable]);
        let tag = self.next_tag;
        let table = ORIGIN + MEMORY as u64 / 2 + 16 * script.below(MEMORY / 32) as u64;
        let indirect = script.byte() & 1 == 1;
        let mut queue = self.queue();
        let (result, descriptors) = if indirect {
            (queue.add_indirect(tag, table, &buffers), 1)
        } else {
            (queue.add(tag, &buffers), buffers.len() as u16)
        };
        if result.is_ok() {
            self.out.insert(
                tag,
                PendingChain {
                    room: len * writable as u32,
                    descriptors,
                },
            );
            self.next_tag += 1;
        }
    }

    /// Returns chains of the available ring through the used ring, as a device would, with lengths from the script.
    fn give_back(&mut self, script: &mut Script<'_>) {
        let available = (self.queue.layout.available - ORIGIN) as usize;
        let used = (self.queue.layout.used - ORIGIN) as usize;
        let index = self.queue.memory.load_u16(used + 2, Ordering::Relaxed);
        let count = script.below(3) as u16;
        for entry in 0..count {
            let slot = usize::from(index.wrapping_add(entry) % self.queue.layout.size);
            let head = self
                .queue
                .memory
                .load_u16(available + 4 + 2 * slot, Ordering::Relaxed);
            self.queue.memory.store_u32(used + 4 + 8 * slot, head.into());
            self.queue
                .memory
                .store_u32(used + 8 + 8 * slot, u32::from(script.byte() & 0x1f));
        }
        self.queue
            .memory
            .store_u16(used + 2, index.wrapping_add(count), Ordering::Relaxed);
    }

    /// Writes an arbitrary element to the used ring.
    fn forge(&mut self, script: &mut Script<'_>) {
        let used = (self.queue.layout.used - ORIGIN) as usize;
        let slot = script.below(self.queue.layout.size.into());
        let id = if script.byte() & 3 == 0 {
            script.u32()
        } else {
            u32::from(script.byte() & 0x3f)
        };
        self.queue.memory.store_u32(used + 4 + 8 * slot, id);
        self.queue
            .memory
            .store_u32(used + 8 + 8 * slot, script.u32() >> (script.byte() & 31));
    }

    fn poll_and_reap(&mut self, most: usize) {
        let waiting = self.call(|queue| queue.poll());
        assert!(waiting.is_err() || waiting.is_ok_and(|waiting| usize::from(waiting) <= self.out.len()));
        for _ in 0..most {
            let Ok(Some(used)) = self.call(|queue| queue.reap()) else {
                return;
            };
            let out = self.out.remove(&used.tag).expect("returned once");
            assert!(used.len <= out.room);
        }
    }

    fn queue(&mut self) -> DriverQueue<'_, &Window<RacyMemory>, Vec<Slot>> {
        self.driver.attach(&self.queue.window).unwrap()
    }

    /// Calls a method of the driver, and checks that every call after an error returns the same error.
    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut DriverQueue<'_, &Window<RacyMemory>, Vec<Slot>>) -> Result<T, VirtqueueError>,
    ) -> Result<T, VirtqueueError> {
        let before = self.driver.broken();
        let result = call(&mut self.queue());
        let error = result.as_ref().err().copied();
        assert_eq!(error, self.driver.broken());
        assert!(before.is_none() || before == error);
        assert!(error.is_none_or(|error| !error.to_string().is_empty()));
        result
    }
}
