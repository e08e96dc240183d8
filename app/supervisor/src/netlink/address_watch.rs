//! What the host owns, and how it changes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Instant;

use ipnet::IpNet;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use super::{EVENT_BYTES, Netlink, is_local, messages};
use crate::retry::Retry;
use crate::subnets::HostNetwork;

/// Follows what the host owns, and whether it has an IPv6 default route.
#[derive(Debug)]
pub(crate) struct AddressWatch {
    events: Socket,
    query: Netlink,
    again: Retry,
    last: Vec<IpNet>,
    /// What it takes for its own by a route.
    local: Vec<IpNet>,
    ipv6_default: bool,
}

/// What has changed.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// What the host owns, if that is something else.
    pub(crate) owned: Option<Vec<IpNet>>,
    /// Whether it has an IPv6 default route, if it had one and has not, or the other way round.
    pub(crate) ipv6_default: Option<bool>,
}

impl AddressWatch {
    /// Subscribes, then looks, so that no change falls between.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn start() -> io::Result<(Self, HostNetwork)> {
        let mut events = Socket::new(NETLINK_ROUTE)?;
        let groups = libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV6_IFADDR
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_ROUTE;
        events.bind(&SocketAddr::new(0, groups.unsigned_abs()))?;
        events.set_non_blocking(true)?;
        let mut query = Netlink::open()?;
        let host = query.host_network()?;
        let watch = Self {
            events,
            query,
            again: Retry::default(),
            last: owned(&host.addresses, &host.local),
            local: host.local.clone(),
            ipv6_default: host.ipv6_default,
        };
        Ok((watch, host))
    }

    /// What the host owns, as far as this has been told.
    #[must_use]
    pub(crate) fn owned(&self) -> &[IpNet] {
        &self.last
    }

    /// What to poll for reading.
    #[must_use]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as it is borrowed, which the result's lifetime says.
        unsafe { BorrowedFd::borrow_raw(self.events.as_raw_fd()) }
    }

    /// Until when to wait at most.
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.again.deadline()
    }

    /// Call it when readable, and when it is time.
    ///
    /// # Errors
    /// The kernel's, unless it may do better in a second.
    pub(crate) fn changed(&mut self) -> io::Result<Changed> {
        // What the events say of addresses does not matter (and some may be lost: ENOBUFS); the list is asked for afresh.
        // Routes may be many, and change often: only some make us look.
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
        let said = self.ask(look);
        let mut changed = Changed::default();
        let Some((owned, ipv6_default)) = self.again.unless_short("the host's addresses", said)? else {
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

    /// What is owned and, where routes are to be looked at, whether there is an IPv6 default route.
    fn ask(&mut self, routes: bool) -> io::Result<(Vec<IpNet>, Option<bool>)> {
        if self.again.is_pending() {
            self.query = Netlink::open()?;
        }
        if !routes {
            return Ok((owned(&self.query.addresses()?, &self.local), None));
        }
        let host = self.query.host_network()?;
        self.local.clone_from(&host.local);
        Ok((owned(&host.addresses, &host.local), Some(host.ipv6_default)))
    }
}

/// The addresses alone, and what the host takes for its own by a route.
fn owned(addresses: &[IpNet], local: &[IpNet]) -> Vec<IpNet> {
    let addresses = addresses.iter().map(|net| IpNet::from(net.addr()));
    let mut owned: Vec<IpNet> = addresses.chain(local.iter().copied()).collect();
    owned.sort_unstable();
    owned.dedup();
    owned
}

/// Whether a message is about an IPv6 default route, or about what the host takes for its own.
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
    use super::*;

    #[test]
    fn addresses_that_cannot_be_read_now_are_read_later() {
        let (mut watch, host) = AddressWatch::start().unwrap();
        let owned = owned(&host.addresses, &host.local);
        watch.last.clear();
        watch.query = Netlink::without_room();
        let changed = watch.changed().unwrap();
        assert!(changed.owned.is_none() && watch.deadline().is_some());
        assert_eq!(watch.changed().unwrap().owned, Some(owned));
        assert_eq!(watch.deadline(), None);
    }
}
