//! The guest library for C. `include/pontoon_guest.h` documents the functions and their requirements.
//!
//! Without an operating system there is no attaching, and the program must provide `abort`.
#![cfg_attr(target_os = "none", no_std)]
#![warn(missing_docs)]

#[cfg(target_os = "linux")]
mod attach;
mod code;
mod create;
mod frames;
#[cfg(target_os = "none")]
mod panic;

#[cfg(target_os = "linux")]
pub use attach::{pontoon_attach, pontoon_detach};
pub use create::{Config, Platform, Rings, pontoon_create, pontoon_shared_bytes};
pub use frames::{
    pontoon_flush, pontoon_now, pontoon_poll, pontoon_queue, pontoon_read, pontoon_start, pontoon_write,
};

#[cfg(target_os = "linux")]
use pontoon_guest::Attached;

use create::Created;
use frames::Frames;

/// Descriptors of each ring: PONTOON_RING_SIZE.
const SIZE: usize = 256;

/// An interface: `struct pontoon`.
pub struct Pontoon(Kind);

enum Kind {
    #[cfg(target_os = "linux")]
    Attached(Attached<SIZE>),
    Created(Created),
}

impl Pontoon {
    fn frames(&mut self) -> &mut dyn Frames {
        match &mut self.0 {
            #[cfg(target_os = "linux")]
            Kind::Attached(interface) => interface,
            Kind::Created(interface) => interface,
        }
    }
}
