//! Memory of a virtqueue without hardware, and hostile peers of either side of the queue.

pub mod hostile_device;
pub mod hostile_driver;
pub mod model;
pub mod racy;
pub mod range;
mod scripted_queue;
