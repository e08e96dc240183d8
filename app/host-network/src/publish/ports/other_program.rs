//! Ports that another program of the host has.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pontoon_engine::config::PublishedKey;

use super::{Port, Ports};
use crate::publish::bound_socket;

impl Ports {
    /// Returns true if another program of the host has the port, in either family. Clients of `localhost` or of a host name try
    /// the addresses of both families, so that a port published in one family would take the clients of a program that listens
    /// in the other one. `new` are ports that are about to be published.
    pub(super) fn is_of_other_program(&self, key: PublishedKey, new: &BTreeMap<PublishedKey, Port>) -> bool {
        let keys = [Some(key), counterpart(key)].into_iter().flatten();
        let is_in_use = |key: PublishedKey| bound_socket(key).is_err_and(|error| is_in_use(&error));
        let mut keys = keys.filter(|key| !self.ports.contains_key(key) && !new.contains_key(key));
        keys.any(|key| is_in_use(key) && !self.is_own(key, new))
    }

    /// Returns true if a published port, at another address, excludes a socket of `key`.
    fn is_own(&self, key: PublishedKey, new: &BTreeMap<PublishedKey, Port>) -> bool {
        let excludes = |other: &PublishedKey| {
            let (a, b) = (key.host, other.host);
            let share_address = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
            other.protocol == key.protocol
                && a.port() == b.port()
                && a.is_ipv4() == b.is_ipv4()
                && share_address
        };
        self.ports.keys().chain(new.keys()).any(excludes)
    }
}

/// Returns the key of the same port at the unspecified or loopback address of the other family.
pub(super) fn counterpart(key: PublishedKey) -> Option<PublishedKey> {
    let address: IpAddr = match key.host.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv6Addr::UNSPECIFIED.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V4(Ipv4Addr::LOCALHOST) => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Ipv4Addr::LOCALHOST.into(),
        _ => return None,
    };
    let host = SocketAddr::new(address, key.host.port());
    Some(PublishedKey { host, ..key })
}

fn is_in_use(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EADDRINUSE)
}
