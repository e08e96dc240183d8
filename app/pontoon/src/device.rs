//! Virtio-net device for a VMM.

use pontoon_link::vhost_user::Control;
use pontoon_vhost_user::{ActivateError, QueueConfig};
use pontoon_wire::Mac;
use vm_memory::GuestMemoryMmap;

/// VIRTIO_NET_F_MAC (virtio 1.2, section 5.1.3).
const F_MAC: u64 = 1 << 5;

/// Part of a guest's virtio-net device that the library implements: features, configuration space and one pair of queues. The
/// VMM implements the registers.
///
/// The engine reads and writes frames in the guest's memory. It offers checksums, TSO and USO both ways, mergeable receive
/// buffers, event indices and indirect descriptors; there is no control queue.
///
/// The value may outlive its network, and then serves no queue.
#[derive(Debug)]
pub struct NetDevice {
    pub(crate) control: Control,
    pub(crate) mac: Mac,
    pub(crate) mtu: u16,
}

impl NetDevice {
    /// Returns the features to offer to the driver (virtio 1.2, sections 5.1.3 and 6).
    #[must_use]
    pub fn features(&self) -> u64 {
        self.control.features() | F_MAC
    }

    /// Returns the device's configuration space (virtio 1.2, section 5.1.4): the guest's Ethernet address, and its MTU.
    #[must_use]
    pub fn config(&self) -> [u8; 12] {
        let mut space = [0; 12];
        space[..6].copy_from_slice(&self.mac.0);
        space[10..].copy_from_slice(&self.mtu.to_le_bytes());
        space
    }

    /// Serves `queues`, the receive queue and the transmit queue, after the driver has set DRIVER_OK and accepted
    /// `features`. Queues of an earlier activation are released first. The function waits for the engine's thread.
    ///
    /// # Errors
    /// Features were not offered, or a queue is not in the guest's memory. No queue is served then.
    pub fn activate(
        &mut self,
        memory: &GuestMemoryMmap,
        features: u64,
        queues: [QueueConfig; 2],
    ) -> Result<(), ActivateError> {
        self.control.activate(memory, features & !F_MAC, queues)
    }

    /// Releases the queues and closes the guest's flows, after the driver has reset the device. When this function returns,
    /// the guest's memory is no longer accessed. It waits for the engine's thread.
    pub fn reset(&mut self) {
        self.control.reset();
    }
}
