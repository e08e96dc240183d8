//! Code that the supervisors of `pontoon run`, `pontoon vm` and `pontoon relay` share: child processes that forward packets,
//! errors for the user, the log, signals, netlink and files.

#![warn(missing_docs)]

pub mod child;
pub mod descriptor;
pub mod error;
pub mod file;
pub mod fix;
pub mod guest_namespaces;
pub mod log;
pub mod netlink;
pub mod ready_notify;
pub mod retry;
pub mod signals;
pub mod socket_file;
pub mod termination;

pub use error::Error;
pub use fix::Fix;
