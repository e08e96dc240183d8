//! Platform of the guest library on the bare machine.

use core::time::Duration;

use pontoon_guest::{DeviceGone, Platform, Ring};

use crate::{interrupts, memory};
use pontoon_microvm_abi::DEVICE;

/// A machine with a virtio device, as platform of the guest library.
#[derive(Debug)]
pub(crate) struct Machine {
    khz: u32,
}

/// Address of the register QueueNotify (virtio 1.2, section 4.2.2).
const QUEUE_NOTIFY: u64 = DEVICE + 0x50;

impl Machine {
    pub(crate) fn new(khz: u32) -> Self {
        Self { khz }
    }
}

/// Returns the time since the time stamp counter has started, whose frequency is `khz`.
pub(crate) fn now(khz: u32) -> Duration {
    let ticks = u128::from(memory::ticks());
    Duration::from_nanos((ticks * 1_000_000 / u128::from(khz)) as u64)
}

impl Platform for Machine {
    fn now(&mut self) -> Duration {
        now(self.khz)
    }

    fn notify(&mut self, ring: Ring) {
        memory::store(QUEUE_NOTIFY, ring as u32);
    }

    fn sleep(&mut self, until: Option<Duration>) -> Result<(), DeviceGone> {
        if let Some(until) = until {
            let left = until.saturating_sub(self.now()).as_nanos();
            interrupts::after(u64::try_from(left).unwrap_or(u64::MAX).max(1));
        }
        memory::halt();
        if until.is_some() {
            interrupts::after(0);
        }
        Ok(())
    }
}
