//! The platform of an interface: its clock, sleep and notifications.

use core::time::Duration;

/// One of the two rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// From the device: virtqueue 0 (virtio 1.2, section 5.1.2).
    Receive = 0,
    /// To the device: virtqueue 1.
    Transmit = 1,
}

/// Notification of the device, sleep and a clock.
pub trait Platform {
    /// Returns the time since a fixed moment.
    fn now(&mut self) -> Duration;

    /// Notifies the device of new entries in `ring`, by an eventfd or a write to a register.
    ///
    /// Earlier stores to memory must become visible to the device first. For a write to device memory this holds on
    /// x86-64, and takes a barrier elsewhere (virtio 1.2, section 2.7.13.4).
    fn notify(&mut self, ring: Ring);

    /// Sleeps until the device sends a notification for either ring, or until `until` on the clock of
    /// [`now`](Self::now).
    ///
    /// A notification that arrived since the last sleep must end this one at once: none may be lost between the
    /// interface's last poll and the sleep. Spurious returns are allowed.
    ///
    /// # Errors
    /// The device is gone.
    fn sleep(&mut self, until: Option<Duration>) -> Result<(), Gone>;
}

/// The device is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device is gone")]
pub struct Gone;
