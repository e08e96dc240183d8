//! Rules that are derived from the kernel's multicast routes, which a routing daemon sets (`--follow-kernel-routes`).
//!
//! An nftables rule prevents the kernel from forwarding the same datagrams. It is in the forward hook, which comes after
//! the kernel's packet count of a route, by which the daemon knows that a sender is active, and after the delivery to
//! programs of the host. The nftables rule exists from the start to the end of the relay, so that no datagram is forwarded
//! twice.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU8;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::{Command, Stdio};
use std::time::Instant;

use ipnet::IpNet;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use pontoon_process::error::Error;
use pontoon_process::netlink::{self, Netlink};
use pontoon_process::retry::Retry;
use pontoon_relay::Rule;
use pontoon_relay::rule::{Hops, Input, Output};

use crate::links::Links;

/// Watch of the kernel's multicast routes. Dropping it removes the nftables rule, so that the kernel forwards again.
#[derive(Debug)]
pub(super) struct KernelRoutes {
    events: Socket,
    query: Netlink,
    again: Retry,
}

/// Families of the kernel's IPv4 and IPv6 multicast routes in rtnetlink (linux/rtnetlink.h: `RTNL_FAMILY_IPMR`,
/// `RTNL_FAMILY_IP6MR`).
const FAMILIES: [u8; 2] = [128, 129];

/// Multicast groups of rtnetlink that announce changes of multicast routes.
const EVENTS: i32 = libc::RTMGRP_IPV4_MROUTE | libc::RTMGRP_IPV6_MROUTE;

/// nft(8) script that stops the kernel's forwarding of multicast datagrams. It replaces a table that another relay may have
/// left.
const BLOCK_FORWARDING: &str = "\
add table inet pontoon_relay
delete table inet pontoon_relay
table inet pontoon_relay {
  chain forward {
    type filter hook forward priority filter; policy accept;
    ip daddr 224.0.0.0/4 meta l4proto udp drop
    ip6 daddr ff00::/8 meta l4proto udp drop
  }
}
";

const UNBLOCK_FORWARDING: &str = "delete table inet pontoon_relay\n";

impl KernelRoutes {
    /// Stops the kernel's multicast forwarding, and subscribes to changes of the routes.
    ///
    /// # Errors
    /// nft(8) is not installed or not permitted, or the kernel refuses a netlink socket.
    pub(super) fn start() -> Result<Self, Error> {
        let cannot = |what: &str, error: &io::Error| Error::io(what, error);
        nft(BLOCK_FORWARDING).map_err(|error| {
            cannot("cannot keep the kernel from forwarding", &error)
                .advise("as root, with nft(8) of the package nftables")
        })?;
        let subscribe = || -> io::Result<Self> {
            let mut events = Socket::new(NETLINK_ROUTE)?;
            events.bind(&SocketAddr::new(0, EVENTS.unsigned_abs()))?;
            events.set_non_blocking(true)?;
            let query = Netlink::open()?;
            Ok(Self {
                events,
                query,
                again: Retry::default(),
            })
        };
        subscribe().map_err(|error| {
            unblock_forwarding();
            cannot("cannot read multicast routes", &error)
        })
    }

    /// Returns the netlink socket of the events, to be polled for reading.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as it is borrowed, which the lifetime of the result ensures.
        unsafe { BorrowedFd::borrow_raw(self.events.as_raw_fd()) }
    }

    /// Returns the time of the next attempt to read the routes, if the last one failed.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.again.deadline()
    }

    /// Reads events; returns true if a route may have changed.
    ///
    /// # Errors
    /// The kernel refuses the read.
    pub(super) fn changed(&self) -> io::Result<bool> {
        Ok(netlink::drain(&self.events)? || self.again.is_due())
    }

    /// Returns the multicast routes as rules; `None` if they cannot be read now. Of several routes with the same input, the
    /// last one is returned.
    ///
    /// # Errors
    /// The kernel refuses the request for a reason that is not temporary; temporary failures are retried after a second.
    pub(super) fn rules(&mut self, links: &Links) -> io::Result<Option<Vec<Rule>>> {
        let result = self.read(links);
        self.again.unless_short("multicast routes", result)
    }

    fn read(&mut self, links: &Links) -> io::Result<Vec<Rule>> {
        if self.again.is_pending() {
            self.query = Netlink::open()?;
        }
        let mut rules = BTreeMap::new();
        for family in FAMILIES {
            let mut request = RouteMessage::default();
            request.header.address_family = AddressFamily::Other(family);
            request.header.kind = RouteType::Multicast;
            for reply in self.query.dump(RouteNetlinkMessage::GetRoute(request))? {
                if let RouteNetlinkMessage::NewRoute(route) = reply
                    && let Some(rule) = rule(&route, links)
                {
                    rules.insert(rule.input.to_string(), rule);
                }
            }
        }
        Ok(rules.into_values().collect())
    }
}

impl Drop for KernelRoutes {
    fn drop(&mut self) {
        unblock_forwarding();
    }
}

/// Returns a route as a rule whose outputs keep the group and port; `None` if the route has no outputs.
fn rule(route: &RouteMessage, links: &Links) -> Option<Rule> {
    let (mut to, mut from, mut iif, mut next_hops) = (None, None, None, Vec::new());
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(address) => to = self::address(address),
            RouteAttribute::Source(address) => from = self::address(address),
            RouteAttribute::Iif(index) => iif = links.name(*index),
            RouteAttribute::MultiPath(hops) => {
                next_hops = hops
                    .iter()
                    .filter_map(|hop| Some((links.name(hop.interface_index)?, threshold(hop.hops))))
                    .collect();
            }
            _ => {}
        }
    }
    let input = Input {
        interface: iif?.to_owned(),
        to: to.filter(IpAddr::is_multicast).map(IpNet::from)?,
        port: None,
        from: from.filter(|from| !from.is_unspecified()).map(IpNet::from),
    };
    let outputs: Vec<Output> = next_hops
        .into_iter()
        .filter(|(name, _)| *name != input.interface)
        .map(|(name, hops)| Output {
            interface: name.to_owned(),
            to: None,
            port: None,
            hops,
        })
        .collect();
    (!outputs.is_empty()).then_some(Rule { input, outputs })
}

/// Returns the rule's handling of the TTL for a route with the threshold `ttl`. The kernel forwards datagrams whose TTL
/// exceeds the threshold (`ip_mr_forward`, Linux net/ipv4/ipmr.c); a TTL above 1 can be decremented.
fn threshold(ttl: u8) -> Hops {
    match NonZeroU8::new(ttl) {
        Some(threshold) if ttl > 1 => Hops::Above(threshold),
        Some(_) | None => Hops::Decrement,
    }
}

/// Returns the address in an attribute of a route. The rtnetlink library does not know the address families of multicast
/// routes and returns raw bytes.
fn address(address: &RouteAddress) -> Option<IpAddr> {
    let RouteAddress::Other(bytes) = address else {
        return None;
    };
    let v4 = || <[u8; 4]>::try_from(bytes.as_slice()).map(|octets| Ipv4Addr::from(octets).into());
    let v6 = || <[u8; 16]>::try_from(bytes.as_slice()).map(|octets| Ipv6Addr::from(octets).into());
    v4().or_else(|_| v6()).ok()
}

fn unblock_forwarding() {
    if let Err(error) = nft(UNBLOCK_FORWARDING) {
        tracing::warn!(%error, "the kernel's multicast forwarding stays blocked (try: nft {})", UNBLOCK_FORWARDING.trim_end());
    }
}

/// Runs an nft(8) script, which nft(8) applies completely or not at all.
fn nft(program: &str) -> io::Result<()> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(program.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let result = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(
        result.lines().next().unwrap_or("nft failed").to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::RouteNextHop;

    use super::*;

    #[test]
    fn threshold_of_a_route_is_part_of_the_rule() {
        let (_, links) = super::super::links::LinkWatch::start().unwrap();
        let lo = links.get("lo").unwrap().index;
        let with = |ttl| {
            let mut hop = RouteNextHop::default();
            (hop.interface_index, hop.hops) = (lo, ttl);
            let mut route = RouteMessage::default();
            route.attributes = vec![
                RouteAttribute::Destination(RouteAddress::Other(vec![239, 1, 1, 1])),
                RouteAttribute::Iif(u32::MAX >> 1),
                RouteAttribute::MultiPath(vec![hop]),
            ];
            let mut links = links.clone();
            links.add("in", u32::MAX >> 1);
            rule(&route, &links).unwrap().to_string()
        };
        assert_eq!(with(1), "in 239.1.1.1:* -> lo *:*");
        assert_eq!(with(64), "in 239.1.1.1:* -> lo *:* above 64");
    }
}
