//! Memory for virtqueues in plain arrays, and scripted hostile peers for both sides of a virtqueue.

pub mod hostile_device;
pub mod hostile_driver;
pub mod model;
pub mod racy;
pub mod range;
mod scripted_queue;
