//! A device whose VMM is this process: the same rings, set up by calls rather than by messages.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use vm_memory::GuestMemoryMmap;

use crate::backend;
use crate::features::Features;
use crate::mailbox::{self, Answer};
use crate::memory::{self, Table};
use crate::message::RingAddress;
use crate::receive::Receiver;
use crate::ring::{Ring, Unusable};
use crate::transmit::Transmitter;

/// The control side of a virtio-net device with one pair of queues, for the VMM that its guest runs in.
///
/// It waits for whoever works on the rings, which takes as long as a burst of frames.
#[derive(Debug)]
pub struct Device {
    /// The receive queue, then the transmit queue (5.1.2).
    rings: Vec<Ring>,
    /// Rung by whoever works on a ring, when it has answered.
    bell: Arc<OwnedFd>,
    mtu: usize,
}

/// A queue as its driver describes it: addresses are the guest's physical ones.
#[derive(Debug)]
pub struct Queue {
    /// Entries, a power of two up to 32,768.
    pub size: u16,
    /// Where the descriptor table is.
    pub descriptors: u64,
    /// Where the available ring, or driver area, is.
    pub available: u64,
    /// Where the used ring, or device area, is.
    pub used: u64,
    /// A non-blocking eventfd that tells of the driver's notifications: an ioeventfd for instance.
    pub kick: OwnedFd,
    /// An eventfd that the driver is interrupted by: an irqfd for instance. It is made non-blocking.
    pub call: OwnedFd,
}

/// Why a device cannot be activated.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Inactive(#[from] Refused);

#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("features {0:#x} are not on offer")]
    Features(u64),
    #[error(transparent)]
    Memory(#[from] memory::Refused),
    #[error("queue {number}: {error}")]
    Unusable { number: u32, error: Unusable },
    #[error("{0}")]
    Worker(String),
}

impl Device {
    /// A device whose guest's MTU is `mtu` bytes, and the halves of its link. Somebody works on these whenever their
    /// descriptors are readable: until then nothing here returns.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new(mtu: usize) -> io::Result<(Self, Receiver, Transmitter)> {
        let bell = Arc::new(mailbox::bell()?);
        let (rings, (receiver, transmitter)) = backend::pair(&bell, mtu)?;
        let rings = rings.into();
        Ok((Self { rings, bell, mtu }, receiver, transmitter))
    }

    /// Virtio features that the device has (5.1.3 and 6). Those of its configuration space are the VMM's to add.
    #[must_use]
    pub fn features(&self) -> u64 {
        Features::offered_in_process().0
    }

    /// Serves `queues`, receive and transmit, of a driver that has accepted `features`, from now on. The memory may be the
    /// guest's as KVM sees it too. Queues of before are let go of first.
    ///
    /// # Errors
    /// Features are not on offer, or a queue cannot be what it is described as. There are no queues then.
    pub fn activate(
        &mut self,
        memory: &GuestMemoryMmap,
        features: u64,
        queues: [Queue; 2],
    ) -> Result<(), Inactive> {
        self.reset();
        let activated = self.try_activate(memory, Features(features), queues);
        if activated.is_err() {
            self.reset();
        }
        Ok(activated?)
    }

    /// Lets go of the queues: when this returns, nobody accesses the guest's memory any more.
    pub fn reset(&mut self) {
        self.rings.iter_mut().for_each(Ring::stop);
        // What was said of a ring that is forgotten does not matter.
        let _ = self.settle();
        self.rings.iter_mut().for_each(Ring::forget);
    }

    fn try_activate(
        &mut self,
        memory: &GuestMemoryMmap,
        features: Features,
        queues: [Queue; 2],
    ) -> Result<(), Refused> {
        if !Features::offered_in_process().has(features) {
            return Err(Refused::Features(features.0));
        }
        let memory = Arc::new(Table::in_process(memory)?);
        let mut both = (0..).zip(queues).zip(&mut self.rings);
        let started = both.try_for_each(|((number, queue), ring)| {
            start(ring, number, queue, &memory, features, self.mtu)
                .map_err(|error| Refused::Unusable { number, error })
        });
        // Also where one cannot be: the other may have an order, and takes no second one before it has obeyed.
        let settled = self.settle();
        started.and(settled)
    }

    /// Waits until all orders have been obeyed.
    fn settle(&mut self) -> Result<(), Refused> {
        while self.rings.iter().any(Ring::is_busy) {
            // An interrupted wait is one more look. The bell is rung for each answer, after that is there.
            let _ = poll(&mut [PollFd::new(&*self.bell, PollFlags::IN)], None);
            let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        }
        let answers: Vec<_> = self.rings.iter_mut().filter_map(Ring::collect).collect();
        for answer in answers {
            if let Answer::Refused(reason) = answer {
                return Err(Refused::Worker(reason));
            }
        }
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.reset();
    }
}

fn start(
    ring: &mut Ring,
    number: u32,
    queue: Queue,
    memory: &Arc<Table>,
    features: Features,
    mtu: usize,
) -> Result<(), Unusable> {
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
