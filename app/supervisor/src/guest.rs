//! Start of a guest: a command in new namespaces, a tap in an existing namespace, or the socket of a virtual machine.

pub(crate) mod attach;
pub(crate) mod cgroups;
pub(crate) mod command;
pub(crate) mod handshake;
pub(crate) mod init;
pub(crate) mod loopback_ports;
pub(crate) mod machine;
pub(crate) mod mounts;
mod outer;
pub(crate) mod route;
pub(crate) mod socket_helper;
pub(crate) mod tap;
pub(crate) mod terminal;
pub(crate) mod userns;
pub(crate) mod vhost;
