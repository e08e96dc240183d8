//! Edge
pub mod error;
pub mod netlink;
pub mod options;
pub mod publish;
pub mod resolv;
pub mod subnets;
pub use error::Error;
