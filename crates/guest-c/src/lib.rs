//! The guest library for C. What the functions do, and what they ask of their callers, is in `include/pontoon_guest.h`.
//!
//! For a target without an operating system there is no attaching, and whoever links the library brings `abort`.
#![cfg_attr(target_os = "none", no_std)]
#![warn(missing_docs)]

#[cfg(target_os = "linux")]
mod attach;
mod code;
mod frames;
mod handed;
#[cfg(target_os = "none")]
mod panic;

#[cfg(target_os = "linux")]
pub use attach::{pontoon_attach, pontoon_detach};
pub use frames::{
    pontoon_flush, pontoon_now, pontoon_poll, pontoon_queue, pontoon_read, pontoon_start, pontoon_write,
};
pub use handed::{Config, Platform, Rings, pontoon_create, pontoon_shared_bytes};

#[cfg(target_os = "linux")]
use pontoon_guest::Attached;

use frames::Frames;
use handed::Handed;

/// Descriptors of each ring: PONTOON_RING_SIZE.
const SIZE: usize = 256;

/// An interface: `struct pontoon`.
pub struct Pontoon(Kind);

enum Kind {
    #[cfg(target_os = "linux")]
    Attached(Attached<SIZE>),
    Handed(Handed),
}

impl Pontoon {
    fn frames(&mut self) -> &mut dyn Frames {
        match &mut self.0 {
            #[cfg(target_os = "linux")]
            Kind::Attached(interface) => interface,
            Kind::Handed(interface) => interface,
        }
    }
}
