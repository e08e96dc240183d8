//! Host names, and the places of the network in which they appear without encryption: the ClientHello of TLS and DNS
//! messages.
//!
//! This crate reads no clock, opens no socket, starts no thread and has no unsafe code. All input is hostile: memory
//! and computing time are bounded.
//!
//! [`HostName`] is the normal form of a name, in which names are compared. A [`ClientHelloReader`] reads the name of the
//! server to which a TLS client connects. [`ech`] removes the keys of Encrypted Client Hello from DNS responses, without
//! which clients do not encrypt that name.
#![forbid(unsafe_code)]
#![deny(clippy::iter_over_hash_type)]
#![deny(missing_docs)]

pub mod client_hello;
pub mod ech;
mod host_name;

pub use client_hello::ClientHelloReader;
pub use host_name::{HostName, HostNameError};
