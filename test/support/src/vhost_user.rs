//! Scripted hostile front-ends and guests of the vhost-user device.

pub mod front_end;
pub mod guest;
pub mod messages;
