//! What an interface stands on.

use core::time::Duration;

/// One of the two rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// From the device: virtqueue 0 (virtio 1.2, section 5.1.2).
    Receive = 0,
    /// To the device: virtqueue 1.
    Transmit = 1,
}

/// Doorbells, sleep and a clock.
pub trait Platform {
    /// The time since some moment that stays the same.
    fn now(&mut self) -> Duration;

    /// Notifies the device of what is new in `ring`: an eventfd, a write to a register.
    ///
    /// The stores to memory that came before must be visible to the device first; to a write of device memory that is
    /// given on x86-64, and elsewhere it takes a barrier (virtio 1.2, section 2.7.13.4).
    fn notify(&mut self, ring: Ring);

    /// Sleeps until the device notifies of either ring, or until `until` on the clock of [`now`](Self::now).
    ///
    /// A notification that came since the last sleep ended it at once: none may be lost between the interface's last look
    /// and the sleep. It may return early for no reason.
    ///
    /// # Errors
    /// The device is gone, and nothing will come any more.
    fn sleep(&mut self, until: Option<Duration>) -> Result<(), Gone>;
}

/// The device is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device is gone")]
pub struct Gone;
