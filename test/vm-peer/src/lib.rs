//! The virtual machine's end of a VM link, for tests and measurements.
//!
//! - [`tap_bridge`] copies frames between a tap and a stream or packet socket, as a hypervisor does.
//! - [`vhost_user`] is a vhost-user front-end with a virtio-net driver, in one process.
//! - [`qemu`] boots a Debian kernel in QEMU.

#![warn(missing_docs)]

pub mod qemu;
pub mod tap_bridge;
pub mod vhost_user;
