//! The platform of an interface: its clock, its sleep and the notification of the device.

use core::time::Duration;

/// One of the two rings of an interface; the number is that of the virtqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// Ring of frames from the device: virtqueue 0 (virtio 1.2, section 5.1.2).
    Receive = 0,
    /// Ring of frames to the device: virtqueue 1.
    Transmit = 1,
}

/// Functions of the environment that an interface needs: notification of the device, sleep and a clock.
pub trait Platform {
    /// Returns the time since a fixed moment, for example the start of the machine.
    fn now(&mut self) -> Duration;

    /// Notifies the device of new entries in `ring`, for example by an eventfd or by writing a device register.
    ///
    /// Earlier stores to memory must become visible to the device before the notification. A write to device memory
    /// ensures this on x86-64, and needs a barrier on other architectures (virtio 1.2, section 2.7.13.4).
    fn notify(&mut self, ring: Ring);

    /// Sleeps until the device sends a notification for either ring, or until the time `until` on the clock of
    /// [`now`](Self::now).
    ///
    /// A notification that has arrived since the last sleep must end this one at once, because none may be lost between
    /// the interface's last poll and the sleep. The function may return early.
    ///
    /// # Errors
    /// The device has disconnected or ended.
    fn sleep(&mut self, until: Option<Duration>) -> Result<(), DeviceGone>;
}

/// Error: the device has disconnected or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device has disconnected or ended")]
pub struct DeviceGone;
