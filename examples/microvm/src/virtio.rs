//! Registers of the guest's network device: virtio over MMIO (virtio 1.2, section 4.2.2).

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use anyhow::{Context, Result};
use pontoon::{NetDevice, QueueConfig};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

/// Offsets of the registers.
const MAGIC: u64 = 0x00;
const VERSION: u64 = 0x04;
const DEVICE_ID: u64 = 0x08;
const VENDOR_ID: u64 = 0x0c;
const DEVICE_FEATURES: u64 = 0x10;
const DEVICE_FEATURES_SEL: u64 = 0x14;
const DRIVER_FEATURES: u64 = 0x20;
const DRIVER_FEATURES_SEL: u64 = 0x24;
const QUEUE_SEL: u64 = 0x30;
const QUEUE_NUM_MAX: u64 = 0x34;
const QUEUE_NUM: u64 = 0x38;
const QUEUE_READY: u64 = 0x44;
pub(crate) const QUEUE_NOTIFY: u64 = 0x50;
const INTERRUPT_STATUS: u64 = 0x60;
const STATUS: u64 = 0x70;
const QUEUE_DESC: u64 = 0x80;
const QUEUE_DRIVER: u64 = 0x90;
const QUEUE_DEVICE: u64 = 0xa0;
const CONFIG: u64 = 0x100;

/// Bits of the device status register (virtio 1.2, section 2.1).
const DRIVER_OK: u32 = 4;
const FEATURES_OK: u32 = 8;

/// Limit on the number of entries of a queue.
const MAX_SIZE: u16 = 1024;

/// Registers of the network device. The engine serves the device's queues.
#[derive(Debug)]
pub(crate) struct Virtio {
    device: NetDevice,
    memory: GuestMemoryMmap,
    kicks: [EventFd; 2],
    call: EventFd,
    status: u32,
    device_word: u32,
    driver_word: u32,
    features: u64,
    selected: usize,
    queues: [QueueRegisters; 2],
}

/// Registers that configure one queue.
#[derive(Clone, Copy, Debug, Default)]
struct QueueRegisters {
    size: u16,
    ready: bool,
    descriptors: u64,
    available: u64,
    used: u64,
}

impl Virtio {
    /// Creates a device with a kick eventfd for each queue and one call eventfd.
    pub(crate) fn new(
        device: NetDevice,
        memory: GuestMemoryMmap,
        kicks: [EventFd; 2],
        call: EventFd,
    ) -> Self {
        Self {
            device,
            memory,
            kicks,
            call,
            status: 0,
            device_word: 0,
            driver_word: 0,
            features: 0,
            selected: 0,
            queues: Default::default(),
        }
    }

    /// Handles the guest's read of a register.
    pub(crate) fn read(&self, register: u64, into: &mut [u8]) {
        if let Some(at) = register.checked_sub(CONFIG) {
            let config = self.device.config();
            let from = usize::try_from(at)
                .ok()
                .and_then(|at| config.get(at..))
                .unwrap_or_default();
            into.fill(0);
            for (to, from) in into.iter_mut().zip(from) {
                *to = *from;
            }
            return;
        }
        let queue = self.queues.get(self.selected);
        let value = match register {
            MAGIC => u32::from_le_bytes(*b"virt"),
            VERSION => 2,
            DEVICE_ID => 1,
            VENDOR_ID => u32::from_le_bytes(*b"Pont"),
            DEVICE_FEATURES => word(self.device.features(), self.device_word),
            QUEUE_NUM_MAX => queue.map_or(0, |_| MAX_SIZE.into()),
            QUEUE_READY => queue.map_or(0, |queue| queue.ready.into()),
            // An irqfd does not transfer the interrupt status, so used buffers are reported always.
            INTERRUPT_STATUS => 1,
            STATUS => self.status,
            _ => 0,
        };
        into.fill(0);
        for (to, from) in into.iter_mut().zip(value.to_le_bytes()) {
            *to = from;
        }
    }

    /// Handles the guest's write to a register.
    ///
    /// # Errors
    /// The engine cannot serve the guest's queues.
    pub(crate) fn write(&mut self, register: u64, bytes: &[u8]) -> Result<()> {
        let Ok(bytes) = bytes.try_into() else {
            return Ok(());
        };
        let value = u32::from_le_bytes(bytes);
        match register {
            DEVICE_FEATURES_SEL => self.device_word = value,
            DRIVER_FEATURES_SEL => self.driver_word = value,
            DRIVER_FEATURES => set_word(&mut self.features, self.driver_word, value),
            QUEUE_SEL => self.selected = usize::try_from(value)?,
            QUEUE_NOTIFY => {
                if let Some(kick) = self.kicks.get(usize::try_from(value)?) {
                    kick.write(1)?;
                }
            }
            STATUS => self.set_status(value)?,
            _ => {
                if let Some(queue) = self.queues.get_mut(self.selected) {
                    queue.write(register, value);
                }
            }
        }
        Ok(())
    }

    fn set_status(&mut self, status: u32) -> Result<()> {
        let before = std::mem::replace(&mut self.status, status);
        if status == 0 {
            self.device.reset();
            self.features = 0;
            self.queues = Default::default();
        }
        if status & FEATURES_OK != 0 && self.features & !self.device.features() != 0 {
            self.status &= !FEATURES_OK;
        }
        if status & !before & DRIVER_OK != 0 {
            self.activate()?;
        }
        Ok(())
    }

    fn activate(&mut self) -> Result<()> {
        let queue = |number: usize| -> Result<QueueConfig> {
            let registers = self.queues[number];
            Ok(QueueConfig {
                size: registers.size,
                descriptors: registers.descriptors,
                available: registers.available,
                used: registers.used,
                kick: descriptor(&self.kicks[number])?,
                call: descriptor(&self.call)?,
            })
        };
        let queues = [queue(0)?, queue(1)?];
        self.device
            .activate(&self.memory, self.features, queues)
            .context("the guest's queues cannot be served")
    }
}

impl QueueRegisters {
    fn write(&mut self, register: u64, value: u32) {
        match register {
            QUEUE_NUM => self.size = u16::try_from(value).unwrap_or(0),
            QUEUE_READY => self.ready = value != 0,
            _ => {
                let half = u32::from(register & 4 != 0);
                match register & !4 {
                    QUEUE_DESC => set_word(&mut self.descriptors, half, value),
                    QUEUE_DRIVER => set_word(&mut self.available, half, value),
                    QUEUE_DEVICE => set_word(&mut self.used, half, value),
                    _ => {}
                }
            }
        }
    }
}

/// Returns the 32-bit word `number` of a value: 0 is the lower, 1 the upper.
fn word(value: u64, number: u32) -> u32 {
    match number {
        0 => value as u32,
        1 => (value >> 32) as u32,
        _ => 0,
    }
}

fn set_word(value: &mut u64, number: u32, word: u32) {
    match number {
        0 => *value = *value & !0xffff_ffff | u64::from(word),
        1 => *value = *value & 0xffff_ffff | u64::from(word) << 32,
        _ => {}
    }
}

/// Duplicates an eventfd into the type that the engine requires.
fn descriptor(event: &EventFd) -> Result<OwnedFd> {
    let copy = event.try_clone()?.into_raw_fd();
    // SAFETY: the copy has no other owner: `into_raw_fd` released it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
