//! The guest library for C programs. `include/pontoon_guest.h` documents the functions and their requirements.
//!
//! On targets without an operating system there is no `pontoon_attach`, and the C program must provide `abort`.
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
pub use create::{Config, Platform, VringLayout, pontoon_create, pontoon_shared_bytes};
pub use frames::{
    pontoon_flush, pontoon_now, pontoon_poll, pontoon_queue, pontoon_read, pontoon_start, pontoon_write,
};

#[cfg(target_os = "linux")]
use pontoon_guest::Attached;

use create::CreatedInterface;
use frames::FrameOperations;

/// Number of descriptors of each ring (PONTOON_RING_SIZE).
const SIZE: usize = 256;

/// A network interface of a C program (`struct pontoon`).
pub struct Pontoon(Kind);

enum Kind {
    #[cfg(target_os = "linux")]
    Attached(Attached<SIZE>),
    Created(CreatedInterface),
}

impl Pontoon {
    fn frames(&mut self) -> &mut dyn FrameOperations {
        match &mut self.0 {
            #[cfg(target_os = "linux")]
            Kind::Attached(interface) => interface,
            Kind::Created(interface) => interface,
        }
    }
}
