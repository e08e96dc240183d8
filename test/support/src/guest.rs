//! Runs an interface of the guest library against a scripted hostile device.

use std::sync::atomic::Ordering;
use std::time::Duration;

use pontoon_guest::{DeviceGone, Error, Interface, Map, Pacing, Platform, QueueError, Ring};
use pontoon_ring::memory::{Area, Window};
use pontoon_ring::{Features, Layout};

use crate::ring::model::ModelMemory;
use crate::ring::racy::RacyMemory;
use crate::script::Script;

const ORIGIN: u64 = 0x4000;
const MAP: Map<8> = Map::new(ORIGIN, 100);

/// The interface of the guest library under test, on memory that changes between loads.
type GuestInterface = Interface<Window<RacyMemory>, SteppedClock, 8>;

/// Runs a script. Panics if the interface panics or returns an impossible result.
pub fn run(script: &[u8]) {
    let mut script = Script(script);
    let options = script.byte();
    let memory = ModelMemory::new(MAP.bytes());
    let seed = match options & 1 {
        0 => 0,
        _ => 1 + u64::from(script.u32()),
    };
    let mut runner = InterfaceRunner {
        net: open(&memory, options, seed),
        memory,
        broken: None,
    };
    while let Some(step) = script.next_byte() {
        if runner.broken.is_some() && step == u8::MAX {
            runner.net = open(&runner.memory, options, seed);
            runner.broken = None;
        }
        runner.step(step, &mut script);
    }
}

fn open(memory: &ModelMemory, options: u8, seed: u64) -> GuestInterface {
    let features = Features {
        event_idx: options & 2 != 0,
        indirect: false,
    };
    let pacing = [Pacing::Event, Pacing::Hybrid, Pacing::Poll][usize::from(options >> 2) % 3];
    let window = Window::new(RacyMemory::new(memory, seed), ORIGIN);
    GuestInterface::new(window, MAP, features, SteppedClock::default(), pacing).unwrap()
}

/// A platform of the guest library whose clock advances by a microsecond at each read, and whose sleep returns at
/// once.
#[derive(Debug, Default)]
struct SteppedClock(Duration);

impl Platform for SteppedClock {
    fn now(&mut self) -> Duration {
        self.0 += Duration::from_micros(1);
        self.0
    }

    fn notify(&mut self, _: Ring) {}

    fn sleep(&mut self, _: Option<Duration>) -> Result<(), DeviceGone> {
        Ok(())
    }
}

/// The interface under test, and the memory that it shares with the hostile device.
struct InterfaceRunner {
    memory: ModelMemory,
    net: GuestInterface,
    /// The error of the receive queue, if the interface has detected one. It must not change.
    broken: Option<Error>,
}

impl InterfaceRunner {
    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 16 {
            0..=3 => self.queue(script.below(MAP.frame() + 10)),
            4 => assert_eq!(self.net.flush(), Ok(())),
            5..=7 => self.read(script.below(MAP.frame() + 10)),
            8 => self.poll(),
            9 => drop(self.net.poll_room()),
            10..=12 => self.give_back(script),
            13 => self.forge(script),
            _ => {
                let at = script.below(MAP.bytes());
                self.memory.copy_in(at, &[script.byte()]);
            }
        }
    }

    fn queue(&mut self, len: usize) {
        let room = MAP.frame();
        let queued = self.net.queue(&[0; 200][..len]);
        assert_eq!(queued == Err(QueueError::Long { len, room }), len > room);
    }

    fn read(&mut self, room: usize) {
        let before = self.net.counters();
        match self.net.read(&mut [0; 200][..room]) {
            Ok(len) => {
                assert_eq!(self.broken, None);
                assert!(len.is_none_or(|len| len <= MAP.frame()));
                let received = self.net.counters().received - before.received;
                assert_eq!(received, u64::from(len.is_some()));
            }
            Err(error) => {
                assert!(self.broken.is_none_or(|broken| broken == error));
                self.broken = Some(error);
            }
        }
    }

    fn poll(&mut self) {
        let deadline = self.net.platform().now() + Duration::from_micros(100);
        if self.net.poll(Some(deadline)).is_ok() {
            assert_eq!(self.broken, None);
        }
    }

    /// Returns chains of the available ring through the used ring, as a device would, with lengths from the script.
    fn give_back(&mut self, script: &mut Script<'_>) {
        let [available, used] = self.ring(script);
        let index = self.memory.load_u16(used + 2, Ordering::Relaxed);
        let count = script.below(3) as u16;
        for entry in 0..count {
            let slot = usize::from(index.wrapping_add(entry) % 8);
            let head = self.memory.load_u16(available + 4 + 2 * slot, Ordering::Relaxed);
            self.memory.store_u32(used + 4 + 8 * slot, head.into());
            self.memory
                .store_u32(used + 8 + 8 * slot, u32::from(script.byte() & 0x7f));
        }
        self.memory
            .store_u16(used + 2, index.wrapping_add(count), Ordering::Relaxed);
    }

    /// Writes an arbitrary element to a used ring.
    fn forge(&mut self, script: &mut Script<'_>) {
        let [_, used] = self.ring(script);
        let slot = script.below(8);
        self.memory
            .store_u32(used + 4 + 8 * slot, u32::from(script.byte() & 0xf));
        self.memory
            .store_u32(used + 8 + 8 * slot, script.u32() >> (script.byte() & 31));
    }

    /// Returns the offsets of the available and the used ring of one of the two queues.
    fn ring(&self, script: &mut Script<'_>) -> [usize; 2] {
        let Layout { available, used, .. } = [MAP.receive(), MAP.transmit()][script.below(2)];
        [available, used].map(|addr| (addr - ORIGIN) as usize)
    }
}
