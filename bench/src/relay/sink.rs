//! Sinks of datagrams.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use anyhow::Result;
use pontoon_sys::{filter, multicast, udp};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use crate::network::Namespace;

/// One socket in each namespace, whose filter drops everything; the kernel counts the drops.
pub(super) struct Sinks(Vec<UdpSocket>);

impl Sinks {
    pub(super) fn open(namespaces: &[Namespace], group: SocketAddrV4) -> Result<Self> {
        let open = |namespace: &Namespace| {
            namespace.enter(|| {
                let socket = receiver(group)?;
                filter::refuse_all(&socket)?;
                Ok(socket)
            })
        };
        namespaces.iter().map(open).collect::<Result<_>>().map(Self)
    }

    /// Returns the number of datagrams that arrived at all sinks.
    pub(super) fn count(&self) -> Result<u64> {
        let mut sum = 0;
        for socket in &self.0 {
            sum += u64::from(udp::dropped(socket)?);
        }
        Ok(sum)
    }

    pub(super) fn all_reached(&self) -> Result<bool> {
        for socket in &self.0 {
            if udp::dropped(socket)? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Joins a group on the interface `in` of the caller's namespace.
pub(super) fn receiver(group: SocketAddrV4) -> Result<UdpSocket> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // Several sockets of one group each receive every datagram.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, group.port()))?;
    let index = rustix::net::netdevice::name_to_index(&socket, "in")?;
    multicast::join(&socket, index, (*group.ip()).into(), None)?;
    Ok(socket.into())
}
