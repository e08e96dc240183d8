//! Watch of the host's addresses and routes (rtnetlink(7)).

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Instant;

use ipnet::IpNet;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use pontoon_process::netlink::{EVENT_BYTES, Netlink, messages};
use pontoon_process::retry::Retry;

use super::network::{HostNetwork, is_local};
use super::source_addresses;

/// Watch of the host's own addresses, of those from which it sends to other hosts, and of the existence of an IPv6 default route.
#[derive(Debug)]
pub struct AddressWatch {
    events: Socket,
    netlink: Netlink,
    again: Retry,
    last: Vec<IpNet>,
    /// Prefixes that a route of type `local` delivers to the host.
    local: Vec<IpNet>,
    ipv6_default: bool,
    sources: [Option<IpAddr>; 2],
}

/// Changes of the host's addresses and routes since the last read.
#[derive(Debug, Default)]
pub struct NetworkChanges {
    /// Addresses of the host, if they changed.
    pub owned: Option<Vec<IpNet>>,
    /// The addresses from which the host sends to other hosts (IPv4, IPv6), if they changed.
    pub sources: Option<[Option<IpAddr>; 2]>,
    /// True if the host has an IPv6 default route now, false if it has none; `None` if that did not change.
    pub ipv6_default: Option<bool>,
}

impl AddressWatch {
    /// Subscribes to events, then reads the addresses and routes, so that no change is missed.
    ///
    /// # Errors
    /// The kernel refuses a netlink socket or a request.
    pub fn start() -> io::Result<(Self, HostNetwork)> {
        let mut events = Socket::new(NETLINK_ROUTE)?;
        let groups = libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV6_IFADDR
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_ROUTE;
        events.bind(&SocketAddr::new(0, groups.unsigned_abs()))?;
        events.set_non_blocking(true)?;
        let mut netlink = Netlink::open()?;
        let host = HostNetwork::read(&mut netlink)?;
        let watch = Self {
            events,
            netlink,
            again: Retry::default(),
            last: owned(&host.addresses, &host.local),
            local: host.local.clone(),
            ipv6_default: host.ipv6_default,
            sources: source_addresses(),
        };
        Ok((watch, host))
    }

    /// Returns the host's own addresses at the last read.
    #[must_use]
    pub fn owned(&self) -> &[IpNet] {
        &self.last
    }

    /// Returns the addresses from which the host sends to other hosts, at the last read: IPv4, IPv6.
    #[must_use]
    pub fn sources(&self) -> [Option<IpAddr>; 2] {
        self.sources
    }

    /// Returns the netlink socket of the events, to be polled for reading.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket stays open while it is borrowed, which the lifetime of the result ensures.
        unsafe { BorrowedFd::borrow_raw(self.events.as_raw_fd()) }
    }

    /// Returns the time of the retry, if the last read failed for a temporary reason.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.again.deadline()
    }

    /// Reads events, then the state that has changed. It is called when the descriptor is readable, and at the deadline.
    ///
    /// # Errors
    /// The kernel refuses a request for a reason that is not temporary.
    pub fn changed(&mut self) -> io::Result<NetworkChanges> {
        // Addresses are read again after any event, as events may be lost (ENOBUFS). Routes can be many and change often, so
        // they are read again only after an event that concerns them.
        let mut look = self.again.is_pending();
        loop {
            let mut event = Vec::with_capacity(EVENT_BYTES);
            match self.events.recv(&mut event, 0) {
                Ok(_) => look |= messages(&event).any(|message| matters(&message)),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => look = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let mut changed = NetworkChanges::default();
        let sources = source_addresses();
        if sources != self.sources {
            self.sources = sources;
            changed.sources = Some(sources);
        }
        let reply = self.query(look);
        let Some((owned, ipv6_default)) = self.again.unless_short("the host's addresses", reply)? else {
            return Ok(changed);
        };
        if owned != self.last {
            self.last.clone_from(&owned);
            changed.owned = Some(owned);
        }
        changed.ipv6_default = ipv6_default.filter(|exists| *exists != self.ipv6_default);
        self.ipv6_default = ipv6_default.unwrap_or(self.ipv6_default);
        Ok(changed)
    }

    /// Reads the host's own addresses and, if `routes` is set, the existence of an IPv6 default route.
    fn query(&mut self, routes: bool) -> io::Result<(Vec<IpNet>, Option<bool>)> {
        if self.again.is_pending() {
            self.netlink = Netlink::open()?;
        }
        if !routes {
            return Ok((owned(&self.netlink.addresses()?, &self.local), None));
        }
        let host = HostNetwork::read(&mut self.netlink)?;
        self.local.clone_from(&host.local);
        Ok((owned(&host.addresses, &host.local), Some(host.ipv6_default)))
    }
}

/// Returns the addresses without their prefix lengths, and the prefixes that a route of type `local` delivers to the host.
fn owned(addresses: &[IpNet], local: &[IpNet]) -> Vec<IpNet> {
    let addresses = addresses.iter().map(|net| IpNet::from(net.addr()));
    let mut owned: Vec<IpNet> = addresses.chain(local.iter().copied()).collect();
    owned.sort_unstable();
    owned.dedup();
    owned
}

/// Returns true if the message is about an IPv6 default route or a route of type `local`.
fn matters(message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
    match &message.payload {
        NetlinkPayload::InnerMessage(
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route),
        ) => {
            is_local(route)
                || (route.header.address_family == AddressFamily::Inet6
                    && route.header.destination_prefix_length == 0)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use pontoon_test_support::netlink::overflow;

    use super::*;

    #[test]
    fn failed_read_of_addresses_is_retried() {
        let (mut watch, host) = AddressWatch::start().unwrap();
        let owned = owned(&host.addresses, &host.local);
        watch.last.clear();
        watch.netlink = Netlink::of(overflow(Netlink::open().unwrap().into_socket()));
        let changed = watch.changed().unwrap();
        assert!(changed.owned.is_none() && watch.deadline().is_some());
        assert_eq!(watch.changed().unwrap().owned, Some(owned));
        assert_eq!(watch.deadline(), None);
    }
}
