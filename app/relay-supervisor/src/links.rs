//! Network interfaces and their changes (rtnetlink(7)).

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Instant;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use pontoon_process::netlink::{self, Netlink};
use pontoon_process::retry::Retry;
use pontoon_relay::counters::DeviceStats;
use pontoon_sys::Family;

/// Network interface and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) index: u32,
    /// Interface is administratively up (`IFF_UP`).
    pub(super) up: bool,
    /// Interface has a carrier (`IFF_LOWER_UP`).
    pub(super) carrier: bool,
    pub(super) mtu: u32,
    /// Interface has Ethernet headers as link-layer headers.
    pub(super) ethernet: bool,
    /// Index of the lower interface, through which frames of this interface arrive: for example that of a VLAN.
    lower: Option<u32>,
    addresses: Vec<LocalAddress>,
}

/// Address of an interface that can be a source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalAddress {
    pub(super) address: IpAddr,
    /// Address is deprecated: the kernel prefers other addresses as source (RFC 4862 section 5.5.4).
    deprecated: bool,
}

impl Link {
    /// Returns the interface's addresses of `family`.
    pub(super) fn addresses(&self, family: Family) -> impl Iterator<Item = LocalAddress> {
        let of_family = move |local: &&LocalAddress| Family::of(local.address) == family;
        self.addresses.iter().filter(of_family).copied()
    }
}

impl LocalAddress {
    /// Returns the address in a message; `None` for a tentative address, whose duplicate address detection has not
    /// finished; its end causes another event (RFC 4862 section 5.4).
    fn of(message: &RouteNetlinkMessage) -> Option<Self> {
        let RouteNetlinkMessage::NewAddress(header) = message else {
            return None;
        };
        let flags = header.header.flags;
        if flags.intersects(AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed) {
            return None;
        }
        Some(Self {
            address: netlink::address(message)?.addr(),
            deprecated: flags.contains(AddressHeaderFlags::Deprecated),
        })
    }
}

/// Interfaces by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Links(BTreeMap<String, Link>);

impl Links {
    pub(super) fn get(&self, name: &str) -> Option<&Link> {
        self.0.get(name)
    }

    #[cfg(test)]
    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Link> {
        self.0.get_mut(name)
    }

    /// Adds a copy of the loopback interface with another name and index.
    #[cfg(test)]
    pub(super) fn add(&mut self, name: &str, index: u32) {
        let mut link = self.0["lo"].clone();
        (link.name, link.index) = (name.to_owned(), index);
        self.0.insert(link.name.clone(), link);
    }

    /// Returns true if frames of the interface `name` arrive through the interface `index`.
    pub(super) fn is_stacked_on(&self, name: &str, index: u32) -> bool {
        let mut at = self.get(name);
        // The number of steps is limited: an interface cannot be stacked on itself, but a snapshot taken during a change
        // might have a cycle.
        for _ in 0..self.0.len() {
            let Some(lower) = at.and_then(|link| link.lower) else {
                return false;
            };
            if lower == index {
                return true;
            }
            at = self.0.values().find(|link| link.index == lower);
        }
        false
    }

    /// Returns the name of the interface `index`.
    pub(super) fn name(&self, index: u32) -> Option<&str> {
        let link = self.0.values().find(|link| link.index == index)?;
        Some(&link.name)
    }
}

/// Watch of the host's interfaces and their addresses.
#[derive(Debug)]
pub(super) struct LinkWatch {
    events: Socket,
    query: Netlink,
    again: Retry,
    last: Links,
}

impl LinkWatch {
    /// Subscribes to changes, then reads the interfaces, so that no change is missed.
    ///
    /// # Errors
    /// The kernel refuses a netlink socket or a request.
    pub(super) fn start() -> io::Result<(Self, Links)> {
        let mut events = Socket::new(NETLINK_ROUTE)?;
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        events.bind(&SocketAddr::new(0, groups.unsigned_abs()))?;
        events.set_non_blocking(true)?;
        let mut query = Netlink::open()?;
        let last = read_links(&mut query)?;
        let links = last.clone();
        let watch = Self {
            events,
            query,
            again: Retry::default(),
            last,
        };
        Ok((watch, links))
    }

    /// Returns the netlink socket of the events, to be polled for reading.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as it is borrowed, which the lifetime of the result ensures.
        unsafe { BorrowedFd::borrow_raw(self.events.as_raw_fd()) }
    }

    /// Returns the time of the next attempt to read the interfaces, if the last one failed.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.again.deadline()
    }

    /// Returns the interfaces if they have changed.
    ///
    /// # Errors
    /// The kernel refuses the request for a reason that is not temporary; temporary failures are retried after a second.
    pub(super) fn changed(&mut self) -> io::Result<Option<Links>> {
        if !netlink::drain(&self.events)? && !self.again.is_due() {
            return Ok(None);
        }
        let result = self.read();
        let Some(now) = self.again.unless_short("the interfaces", result)? else {
            return Ok(None);
        };
        if now == self.last {
            return Ok(None);
        }
        self.last = now.clone();
        Ok(Some(now))
    }

    fn read(&mut self) -> io::Result<Links> {
        if self.again.is_pending() {
            self.query = Netlink::open()?;
        }
        read_links(&mut self.query)
    }
}

/// Returns the kernel's counters of network devices, by name.
///
/// # Errors
/// The kernel refuses the request.
pub(super) fn read_device_stats(query: &mut Netlink) -> io::Result<BTreeMap<String, DeviceStats>> {
    let replies = query.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let stats = replies.iter().filter_map(|reply| match reply {
        RouteNetlinkMessage::NewLink(message) => parse_device_stats(message),
        _ => None,
    });
    Ok(stats.map(|stats| (stats.interface.clone(), stats)).collect())
}

fn parse_device_stats(message: &LinkMessage) -> Option<DeviceStats> {
    let stats = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Stats64(stats) => Some(stats),
        _ => None,
    })?;
    Some(DeviceStats {
        interface: name(message)?,
        rx_packets: stats.rx_packets,
        rx_dropped: stats.rx_dropped,
        rx_missed: stats.rx_missed_errors,
        tx_packets: stats.tx_packets,
        tx_dropped: stats.tx_dropped,
    })
}

fn read_links(query: &mut Netlink) -> io::Result<Links> {
    let mut links: BTreeMap<u32, Link> = BTreeMap::new();
    for message in query.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))? {
        if let RouteNetlinkMessage::NewLink(message) = message
            && let Some(link) = link(&message)
        {
            links.insert(link.index, link);
        }
    }
    for message in query.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))? {
        if let RouteNetlinkMessage::NewAddress(header) = &message
            && let Some(local) = LocalAddress::of(&message)
            && let Some(link) = links.get_mut(&header.header.index)
        {
            link.addresses.push(local);
        }
    }
    Ok(Links(
        links
            .into_values()
            .map(|link| (link.name.clone(), link))
            .collect(),
    ))
}

fn link(message: &LinkMessage) -> Option<Link> {
    let mtu = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    });
    let header = &message.header;
    Some(Link {
        name: name(message)?,
        index: header.index,
        up: header.flags.contains(LinkFlags::Up),
        carrier: header.flags.contains(LinkFlags::LowerUp),
        mtu: mtu.unwrap_or(1500),
        ethernet: matches!(
            header.link_layer_type,
            LinkLayerType::Ether | LinkLayerType::Loopback
        ),
        lower: lower(message),
        addresses: Vec::new(),
    })
}

/// Returns the index of the lower interface. For other kinds of interface (such as veth) the attribute `IFLA_LINK` names
/// the peer, which may be in another namespace.
fn lower(message: &LinkMessage) -> Option<u32> {
    let (mut below, mut on_top) = (None, false);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Link(index) => below = Some(*index),
            LinkAttribute::LinkNetNsId(_) => return None,
            LinkAttribute::LinkInfo(about) => {
                on_top |= about.iter().any(|about| {
                    matches!(
                        about,
                        LinkInfo::Kind(InfoKind::Vlan | InfoKind::MacVlan | InfoKind::IpVlan)
                    )
                });
            }
            _ => {}
        }
    }
    below.filter(|_| on_top)
}

fn name(message: &LinkMessage) -> Option<String> {
    message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::address::AddressAttribute;
    use pontoon_test_support::netlink::{overflow, request_acknowledgement};

    use super::*;

    #[test]
    fn reads_the_loopback_interface() {
        let (_, links) = LinkWatch::start().unwrap();
        let lo = links.get("lo").unwrap();
        assert!(lo.index > 0 && lo.ethernet && lo.mtu >= 1500);
        assert!(links.get("no such").is_none());
        let read_device_stats = read_device_stats(&mut Netlink::open().unwrap()).unwrap();
        assert_eq!(read_device_stats["lo"].interface, "lo");
    }

    #[test]
    fn recognizes_stacked_interfaces() {
        let message = |index, below, kind: Option<InfoKind>| {
            let mut message = LinkMessage::default();
            message.header.index = index;
            message.attributes = vec![
                LinkAttribute::IfName(format!("if{index}")),
                LinkAttribute::Link(below),
            ];
            let about = kind.map(|kind| LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]));
            message.attributes.extend(about);
            let link = link(&message).unwrap();
            (link.name.clone(), link)
        };
        let links = Links(BTreeMap::from([
            message(1, 2, Some(InfoKind::Veth)),
            message(2, 1, Some(InfoKind::Veth)),
            message(3, 1, Some(InfoKind::Vlan)),
            message(4, 3, Some(InfoKind::MacVlan)),
        ]));
        assert!(
            links.is_stacked_on("if3", 1) && links.is_stacked_on("if4", 3) && links.is_stacked_on("if4", 1)
        );
        assert!(
            !links.is_stacked_on("if2", 1)
                && !links.is_stacked_on("if1", 1)
                && !links.is_stacked_on("if3", 4)
        );
    }

    #[test]
    fn tentative_address_is_not_used() {
        let with = |flags| {
            let mut message = AddressMessage::default();
            message.header.prefix_len = 64;
            message.header.flags = flags;
            let address = "2001:db8::1".parse().unwrap();
            message.attributes.push(AddressAttribute::Address(address));
            LocalAddress::of(&RouteNetlinkMessage::NewAddress(message))
        };
        let local = with(AddressHeaderFlags::Permanent).unwrap();
        assert!(!local.deprecated);
        assert_eq!(with(AddressHeaderFlags::Tentative), None);
        let taken = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
        assert_eq!(with(taken), None);
        // Sockets choose another source address when one becomes deprecated, so the link counts as changed.
        assert_ne!(with(AddressHeaderFlags::Deprecated), Some(local));
    }

    #[test]
    fn failed_read_is_retried() {
        let (mut watch, links) = LinkWatch::start().unwrap();
        watch.last = Links::default();
        watch.query = Netlink::of(overflow(Netlink::open().unwrap().into_socket()));
        request_acknowledgement(watch.fd());
        assert_eq!(watch.changed().unwrap(), None);
        // The interfaces are not read before the retry is due, unless there is an event.
        assert_eq!(watch.changed().unwrap(), None);
        let due = watch.deadline().unwrap();
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        assert_eq!(watch.changed().unwrap(), Some(links));
        assert_eq!(watch.deadline(), None);
    }
}
