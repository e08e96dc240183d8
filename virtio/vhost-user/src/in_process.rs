//! A virtio-net device for a VMM in the same process: the rings of the vhost-user device, controlled by function calls
//! instead of messages.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use vm_memory::GuestMemoryMmap;

use crate::backend;
use crate::control_ring::{ControlRing, RingError};
use crate::features::Features;
use crate::mailbox::{self, RingResponse};
use crate::memory::{self, MemoryTable};
use crate::message::RingAddress;
use crate::receive::Receiver;
use crate::transmit::Transmitter;

/// The control side of a virtio-net device with one queue pair, for a VMM in the same process.
///
/// The calls wait for the threads that serve the rings, at most for the time of one burst.
#[derive(Debug)]
pub struct InProcessDevice {
    /// The receive queue, then the transmit queue (virtio 1.2, section 5.1.2).
    rings: Vec<ControlRing>,
    /// Eventfd that the thread of a ring signals after it has executed a command.
    event: Arc<OwnedFd>,
    mtu: usize,
}

/// Configuration of a virtqueue by the driver, with guest-physical addresses.
#[derive(Debug)]
pub struct QueueConfig {
    /// Number of entries: a power of two, at most 32,768.
    pub size: u16,
    /// Address of the descriptor table.
    pub descriptors: u64,
    /// Address of the available ring (driver area).
    pub available: u64,
    /// Address of the used ring (device area).
    pub used: u64,
    /// Non-blocking eventfd that the driver's notifications signal, for example an ioeventfd of KVM.
    pub kick: OwnedFd,
    /// Eventfd that interrupts the driver, for example an irqfd of KVM. It is made non-blocking.
    pub call: OwnedFd,
}

/// Reason why a device cannot be activated.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ActivateError(#[from] ActivateErrorKind);

#[derive(Debug, thiserror::Error)]
enum ActivateErrorKind {
    #[error("features {0:#x} were not offered")]
    Features(u64),
    #[error(transparent)]
    Memory(#[from] memory::MemoryError),
    #[error("queue {number}: {error}")]
    RingError { number: u32, error: RingError },
    #[error("{0}")]
    Worker(String),
}

impl InProcessDevice {
    /// Creates a device for a guest whose MTU is `mtu` bytes, with its receiver and transmitter. Other threads must
    /// serve these whenever their descriptors are readable, because the methods of the device wait for that.
    ///
    /// # Errors
    /// Errors of eventfd(2) and epoll_create1(2), for example EMFILE.
    pub fn new(mtu: usize) -> io::Result<(Self, Receiver, Transmitter)> {
        let event = Arc::new(mailbox::new_event()?);
        let (rings, (receiver, transmitter)) = backend::pair(&event, mtu)?;
        let rings = rings.into();
        Ok((Self { rings, event, mtu }, receiver, transmitter))
    }

    /// Returns the virtio features that the device offers (virtio 1.2, sections 5.1.3 and 6). The VMM adds those of the
    /// configuration space.
    #[must_use]
    pub fn features(&self) -> u64 {
        Features::offered_in_process().0
    }

    /// Starts to serve `queues`, receive and then transmit, of a driver that has accepted `features`. `memory` may be
    /// mapped in the guest by KVM as well. Queues that are running are stopped first.
    ///
    /// # Errors
    /// Features were not offered, or a queue is invalid. Then no queue is served.
    pub fn activate(
        &mut self,
        memory: &GuestMemoryMmap,
        features: u64,
        queues: [QueueConfig; 2],
    ) -> Result<(), ActivateError> {
        self.reset();
        let activated = self.try_activate(memory, Features(features), queues);
        if activated.is_err() {
            self.reset();
        }
        Ok(activated?)
    }

    /// Stops the queues. After this call no thread accesses the guest's memory.
    pub fn reset(&mut self) {
        self.rings.iter_mut().for_each(ControlRing::stop);
        // The responses of rings that are cleared next are ignored.
        let _ = self.wait_for_responses();
        self.rings.iter_mut().for_each(ControlRing::clear);
    }

    fn try_activate(
        &mut self,
        memory: &GuestMemoryMmap,
        features: Features,
        queues: [QueueConfig; 2],
    ) -> Result<(), ActivateErrorKind> {
        if !Features::offered_in_process().has(features) {
            return Err(ActivateErrorKind::Features(features.0));
        }
        let memory = Arc::new(MemoryTable::in_process(memory)?);
        let mut both = (0..).zip(queues).zip(&mut self.rings);
        let started = both.try_for_each(|((number, queue), ring)| {
            start(ring, number, queue, &memory, features, self.mtu)
                .map_err(|error| ActivateErrorKind::RingError { number, error })
        });
        // It waits after an error too, because the other ring may have a pending command, before whose execution it
        // accepts no second one.
        let waited = self.wait_for_responses();
        started.and(waited)
    }

    /// Waits until the threads of the rings have executed all commands.
    fn wait_for_responses(&mut self) -> Result<(), ActivateErrorKind> {
        while self.rings.iter().any(ControlRing::is_busy) {
            // An interrupted wait is harmless. The eventfd is signalled after each response is stored.
            let _ = poll(&mut [PollFd::new(&*self.event, PollFlags::IN)], None);
            let _ = rustix::io::read(&*self.event, &mut [0; 8]);
        }
        let responses: Vec<_> = self
            .rings
            .iter_mut()
            .filter_map(ControlRing::take_response)
            .collect();
        for response in responses {
            if let RingResponse::Failed(reason) = response {
                return Err(ActivateErrorKind::Worker(reason));
            }
        }
        Ok(())
    }
}

impl Drop for InProcessDevice {
    fn drop(&mut self) {
        self.reset();
    }
}

fn start(
    ring: &mut ControlRing,
    number: u32,
    queue: QueueConfig,
    memory: &Arc<MemoryTable>,
    features: Features,
    mtu: usize,
) -> Result<(), RingError> {
    ring.set_size(queue.size.into())?;
    let address = RingAddress {
        ring: number,
        flags: 0,
        descriptors: queue.descriptors,
        used: queue.used,
        available: queue.available,
        log: 0,
    };
    ring.set_address(address, memory)?;
    ring.set_call(Some(queue.call))?;
    ring.enable(true);
    ring.start(Some(queue.kick), memory, features, None, mtu)
}
