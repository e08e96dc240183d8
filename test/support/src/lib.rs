//! Code shared by the tests of several crates and by the fuzz targets.
//!
//! A module that names types of another crate must not be used by that crate's own unit tests, which are built with a
//! second copy of those types. Integration tests and fuzz targets may use it.

// An unexpected error fails the test.
#![allow(clippy::unwrap_used)]

#[cfg(feature = "client-hello")]
pub mod client_hello;
pub mod corpus;
#[cfg(feature = "engine")]
pub mod engine;
#[cfg(any(feature = "namespace", feature = "process"))]
pub mod exhaustion;
#[cfg(feature = "frame")]
pub mod frame;
#[cfg(feature = "guest")]
pub mod guest;
#[cfg(feature = "netlink")]
pub mod netlink;
pub mod notifier;
#[cfg(feature = "openapi")]
pub mod openapi;
#[cfg(feature = "process")]
pub mod process;
#[cfg(feature = "property")]
pub mod property;
#[cfg(feature = "proxy")]
pub mod proxy;
#[cfg(feature = "relay")]
pub mod relay;
#[cfg(feature = "ring")]
pub mod ring;
pub mod script;
#[cfg(feature = "vhost-user")]
pub mod vhost_user;
#[cfg(feature = "vhost-user-device")]
pub mod vhost_user_device;

#[cfg(feature = "namespace")]
pub use pontoon_netns::unit_test as namespace;
