//! UDP sockets of an ingress, which need no privilege.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pontoon_process::error::reason;
use pontoon_relay::rule::Input;
use pontoon_sys::{Family, bind, udp};
use rustix::net::{SocketFlags, SocketType, socket_with, sockopt};

use super::receiver::{Failures, receive_no_more};
use super::{Ingress, endpoint};
use crate::links::Link;

/// UDP sockets by destination. All are for the first worker, because each socket that has joined a group would receive a
/// copy. A single socket bound to the unspecified address would receive datagrams for other programs.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    open: BTreeMap<SocketAddr, (u32, Arc<OwnedFd>)>,
    /// Destinations that have no socket because the limit on open sockets is reached.
    refused: BTreeSet<SocketAddr>,
}

/// Size of a socket's receive buffer in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;

impl Sockets {
    /// Returns the number, address and descriptor of each socket.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, SocketAddr, &Arc<OwnedFd>)> {
        self.open.iter().map(|(at, (id, socket))| (*id, *at, socket))
    }

    /// Returns the number of datagrams that the kernel has dropped at open and closed sockets.
    pub(super) fn dropped(&self) -> u64 {
        self.open.values().map(|(_, socket)| dropped(socket)).sum()
    }

    /// Returns the number of open sockets.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns the destinations that have no socket because the limit on open sockets is reached.
    pub(super) fn refused(&self) -> &BTreeSet<SocketAddr> {
        &self.refused
    }

    /// Closes sockets that no rule needs, and adds their drops to `closed_drops`. `send` is called with the number of each
    /// closed socket.
    pub(super) fn close_unwanted<'a>(
        &mut self,
        rules: impl Iterator<Item = &'a Input>,
        closed_drops: &mut u64,
        mut send: impl FnMut(u32),
    ) {
        let wanted: BTreeSet<SocketAddr> = rules.filter_map(endpoint).collect();
        let unwanted = self.open.extract_if(.., |at, _| !wanted.contains(at));
        for (_, (id, socket)) in unwanted {
            receive_no_more(&socket);
            send(id);
            *closed_drops += dropped(&socket);
        }
    }

    /// Opens sockets for destinations of the rules, up to `max_open`. `send` is called with number, address and socket of each.
    /// Returns the destinations whose socket could not be opened, for example because another program has the port.
    pub(super) fn open_wanted<'a>(
        &mut self,
        ingress: &Ingress,
        link: &Link,
        rules: impl Iterator<Item = &'a Input>,
        max_open: usize,
        next_id: &mut u32,
        mut send: impl FnMut(u32, SocketAddr, &Arc<OwnedFd>),
    ) -> Failures {
        let mut failures = Failures::new();
        self.refused.clear();
        for at in rules.filter_map(endpoint).collect::<BTreeSet<SocketAddr>>() {
            if self.open.contains_key(&at) {
                continue;
            }
            if self.open.len() >= max_open {
                self.refused.insert(at);
                continue;
            }
            match open(ingress.family(), link, at) {
                Ok(socket) => {
                    let socket = Arc::new(socket);
                    *next_id += 1;
                    send(*next_id, at, &socket);
                    self.open.insert(at, (*next_id, socket));
                }
                Err(error) => {
                    failures.insert(Some(at), format!("{at}: {}", reason(&error)));
                }
            }
        }
        failures
    }
}

fn dropped(socket: &OwnedFd) -> u64 {
    u64::from(udp::dropped(socket).unwrap_or_default())
}

fn open(family: Family, link: &Link, at: SocketAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family.domain(), SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if family == Family::V6 {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind::to_device(&socket, &link.name)?;
    sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER))?;
    udp::enable_recv_info(&socket, family)?;
    udp::enable_pktinfo(&socket, family)?;
    if let Err(error) = udp::coalesce(&socket) {
        tracing::debug!(%error, "no UDP_GRO");
    }
    let at = match at {
        SocketAddr::V6(v6) => SocketAddrV6::new(*v6.ip(), v6.port(), 0, link.index).into(),
        v4 => v4,
    };
    rustix::net::bind(&socket, &at)?;
    Ok(socket)
}
