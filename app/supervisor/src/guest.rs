//! The guest: a command in namespaces of its own, an existing namespace, or a machine with a socket.

pub(crate) mod attach;
pub(crate) mod command;
pub(crate) mod handshake;
pub(crate) mod init;
pub(crate) mod machine;
pub(crate) mod mounts;
pub(crate) mod route;
pub(crate) mod tap;
pub(crate) mod terminal;
pub(crate) mod userns;
pub(crate) mod vhost;
