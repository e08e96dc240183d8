//! Initialisation of the virtio-net device by its registers (virtio 1.2, section 4.2).

use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::time::Duration;

use pontoon_guest::{Error, Interface, Map, Pacing, Phy, Platform};
use pontoon_ring::memory::{Raw, Window};
use pontoon_ring::{Features, Layout};

use crate::machine::Machine;
use crate::memory::{load, store};
use crate::tasks::{Net, TaskFailure, TrafficCounters};
use pontoon_microvm_abi::{BootParameters, DEVICE, MEMORY, RINGS};

/// Number of frame buffers in each direction.
const SIZE: usize = 256;

const MAGIC: u64 = DEVICE;
const VERSION: u64 = DEVICE + 0x04;
const DEVICE_ID: u64 = DEVICE + 0x08;
const DEVICE_FEATURES: u64 = DEVICE + 0x10;
const DEVICE_FEATURES_SEL: u64 = DEVICE + 0x14;
const DRIVER_FEATURES: u64 = DEVICE + 0x20;
const DRIVER_FEATURES_SEL: u64 = DEVICE + 0x24;
const QUEUE_SEL: u64 = DEVICE + 0x30;
const QUEUE_NUM_MAX: u64 = DEVICE + 0x34;
const QUEUE_NUM: u64 = DEVICE + 0x38;
const QUEUE_READY: u64 = DEVICE + 0x44;
const STATUS: u64 = DEVICE + 0x70;
const QUEUE_DESC: u64 = DEVICE + 0x80;
const QUEUE_DRIVER: u64 = DEVICE + 0x90;
const QUEUE_DEVICE: u64 = DEVICE + 0xa0;

/// Bits of the device status register (virtio 1.2, section 2.1).
const ACKNOWLEDGE: u32 = 1;
const DRIVER: u32 = 2;
const DRIVER_OK: u32 = 4;
const FEATURES_OK: u32 = 8;

/// Feature bit VIRTIO_F_EVENT_IDX.
const EVENT_IDX: u32 = 1 << 29;

/// Feature bit VIRTIO_F_VERSION_1, in the second word of the features.
const VERSION_1: u32 = 1;

/// The guest library's interface as a device of smoltcp.
pub(crate) type Virtio = Phy<Window<Raw<'static>>, Machine, SIZE>;

/// Initialises the device (virtio 1.2, section 3.1.1), and creates the interface.
pub(crate) fn open(parameters: &BootParameters) -> Result<Virtio, TaskFailure> {
    if [load(MAGIC), load(VERSION), load(DEVICE_ID)] != [0x7472_6976, 2, 1] {
        return Err(TaskFailure::Text("no virtio-net device"));
    }
    store(STATUS, 0);
    store(STATUS, ACKNOWLEDGE | DRIVER);
    let wanted = [if parameters.event_idx != 0 { EVENT_IDX } else { 0 }, VERSION_1];
    for (word, wanted) in (0..).zip(wanted) {
        store(DEVICE_FEATURES_SEL, word);
        if load(DEVICE_FEATURES) & wanted != wanted {
            return Err(TaskFailure::Text(
                "the device does not offer the requested features",
            ));
        }
        store(DRIVER_FEATURES_SEL, word);
        store(DRIVER_FEATURES, wanted);
    }
    store(STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK);
    if load(STATUS) & FEATURES_OK == 0 {
        return Err(TaskFailure::Text("the device refuses the features"));
    }

    let map = Map::<SIZE>::new(RINGS, 1514);
    let base = NonNull::new(with_exposed_provenance_mut(RINGS as usize));
    let base = base.ok_or(TaskFailure::Text("invalid address of the rings"))?;
    // SAFETY: the memory from RINGS to MEMORY is mapped, holds no object of the program, and has no other `Raw`.
    let raw = unsafe { Raw::new(base, (MEMORY - RINGS) as usize) };
    let features = Features {
        event_idx: parameters.event_idx != 0,
        indirect: false,
    };
    let pacing = match parameters.pacing {
        0 => Pacing::Event,
        1 => Pacing::Hybrid,
        _ => Pacing::Poll,
    };
    let machine = Machine::new(parameters.khz);
    let mut interface = Interface::new(Window::new(raw, RINGS), map, features, machine, pacing)?;
    for (number, layout) in (0..).zip([map.receive(), map.transmit()]) {
        set_up(number, layout)?;
    }
    store(STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
    interface.start();
    Ok(Phy::new(interface))
}

fn set_up(number: u32, layout: Layout) -> Result<(), TaskFailure> {
    store(QUEUE_SEL, number);
    if load(QUEUE_NUM_MAX) < layout.size.into() {
        return Err(TaskFailure::Text("the device's queues are too small"));
    }
    store(QUEUE_NUM, layout.size.into());
    let parts = [
        (QUEUE_DESC, layout.descriptors),
        (QUEUE_DRIVER, layout.available),
        (QUEUE_DEVICE, layout.used),
    ];
    for (register, address) in parts {
        store(register, address as u32);
        store(register + 4, (address >> 32) as u32);
    }
    store(QUEUE_READY, 1);
    Ok(())
}

impl Net for Virtio {
    fn now(&mut self) -> Duration {
        self.interface().platform().now()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.interface().flush()
    }

    fn wait(&mut self, until: Option<Duration>) -> Result<(), Error> {
        self.interface().poll(until).map(|_| ())
    }

    fn traffic(&mut self) -> TrafficCounters {
        let counters = self.interface().counters();
        TrafficCounters {
            sent: counters.sent as u32,
            received: counters.received as u32,
            doorbells: counters.doorbells as u32,
            sleeps: counters.sleeps as u32,
        }
    }
}
