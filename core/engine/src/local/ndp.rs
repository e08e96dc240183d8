//! IPv6 neighbor discovery (RFC 4861): the engine answers neighbor solicitations for all addresses except the guest's,
//! and router solicitations.

use core::net::{IpAddr, Ipv6Addr};

use arrayvec::ArrayVec;
use pontoon_wire::{Mac, frame, protocol};

use super::domains;
use super::reply::Reply;
use crate::address_plan::{Ipv6Plan, SubnetExtent};
use crate::config::LinkService;
use crate::ctx::Net;
use crate::{Frame, Transmit};

/// Returns true if an ICMPv6 message never leaves the link: neighbor discovery, and multicast listener discovery (RFC
/// 2710, RFC 3810).
pub(super) fn is_link_scoped(ip: &frame::Ip, icmp: &frame::Icmp) -> bool {
    ip.protocol == protocol::ICMPV6
        && ip.source.is_ipv6()
        && matches!(icmp.kind, 130..=132 | ROUTER_SOLICITATION..=REDIRECT | 143)
}

/// Answers neighbor and router solicitations; other link-scoped messages are dropped.
pub(super) fn handle<T: Transmit>(
    frame: &Frame<'_>,
    asker_mac: Mac,
    ip: &frame::Ip,
    icmp: &frame::Icmp,
    net: &mut Net,
    link: &mut T,
) {
    let (IpAddr::V6(source), Some(own)) = (ip.source, net.config.plan.v6.clone()) else {
        return;
    };
    if !matches!(icmp.kind, ROUTER_SOLICITATION | NEIGHBOUR_SOLICITATION) {
        return;
    }
    // Checks of RFC 4861 sections 6.1.1 and 7.1.1. The checksum is not verified, because no medium between guest and
    // engine can corrupt a frame.
    if ip.hop_limit != 255 || icmp.code != 0 || source.is_multicast() {
        net.counters.malformed += 1;
        return;
    }
    let asker = Solicitor {
        mac: asker_mac,
        address: source,
    };
    let service = match icmp.kind {
        ROUTER_SOLICITATION => LinkService::RouterAdvertisement,
        _ => LinkService::Ndp,
    };
    if net.config.disabled.contains(service) {
        return;
    }
    if icmp.kind == ROUTER_SOLICITATION {
        if net.admits_answer() {
            advertise_router(asker, &own, net, link);
        }
        return;
    }
    let mut target = [0; 16];
    if icmp.payload_len < 16 || frame.copy(icmp.payload_offset, &mut target) < 16 || target[0] == 0xff {
        net.counters.malformed += 1;
        return;
    }
    advertise_neighbour(asker, target.into(), &own, net, link);
}

/// The sender of a neighbor or router solicitation: its Ethernet and IPv6 addresses.
#[derive(Clone, Copy)]
struct Solicitor {
    mac: Mac,
    address: Ipv6Addr,
}

impl Solicitor {
    /// Returns the header fields of a reply to the sender of the solicitation, or to all nodes if the sender has no
    /// address yet.
    fn reply(self, source: Ipv6Addr) -> Reply {
        let (to, destination) = match self.address.is_unspecified() {
            true => (ALL_NODES_MAC, ALL_NODES),
            false => (self.mac, self.address),
        };
        Reply {
            to,
            source: source.into(),
            destination: destination.into(),
            hop_limit: 255,
        }
    }
}

/// Solicits the Ethernet address of the guest's IPv6 address, from the router's.
pub(super) fn solicit<T: Transmit>(net: &mut Net, link: &mut T) {
    let Some(own) = &net.config.plan.v6 else {
        return;
    };
    if net.config.disabled.contains(LinkService::Ndp) {
        return;
    }
    let target = own.address.addr();
    let [.., a, b, c] = target.octets();
    // The solicited-node multicast address (RFC 4291 section 2.7.1), and its Ethernet address (RFC 2464 section 7).
    let group = Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(a),
        u16::from_be_bytes([b, c]),
    );
    let reply = Reply {
        to: Mac([0x33, 0x33, 0xff, a, b, c]),
        source: own.router.into(),
        destination: group.into(),
        hop_limit: 255,
    };
    let mut message = ArrayVec::<u8, 32>::new();
    message.extend([NEIGHBOUR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0]);
    message.extend(target.octets());
    message.extend([OPTION_SOURCE_MAC, 1]);
    message.extend(net.config.our_mac.0);
    reply.icmp(net, link, &mut message);
}

fn advertise_neighbour<T: Transmit>(
    asker: Solicitor,
    target: Ipv6Addr,
    own: &Ipv6Plan,
    net: &mut Net,
    link: &mut T,
) {
    let is_own = own.is_engine(target);
    let is_guest = own.addresses().any(|net| net.addr() == target);
    let duplicate_detection = asker.address.is_unspecified();
    if is_guest || target == asker.address || (duplicate_detection && !is_own) {
        // The guest asks for its own address, or for an address that it may configure (RFC 4862 section 5.4.3).
        return;
    }
    let router = if target == own.gateway || target == own.router {
        ROUTER
    } else {
        0
    };
    let solicited = if duplicate_detection { 0 } else { SOLICITED };

    let mut message = ArrayVec::<u8, 32>::new();
    message.extend([
        NEIGHBOUR_ADVERTISEMENT,
        0,
        0,
        0,
        router | solicited | OVERRIDE,
        0,
        0,
        0,
    ]);
    message.extend(target.octets());
    message.extend([OPTION_TARGET_MAC, 1]);
    message.extend(net.config.our_mac.0);
    asker.reply(target).icmp(net, link, &mut message);
}

fn advertise_router<T: Transmit>(asker: Solicitor, own: &Ipv6Plan, net: &mut Net, link: &mut T) {
    // The engine sends router advertisements only in response to solicitations. Therefore the lifetimes are infinite
    // where the format permits it, and the router lifetime is the maximum (RFC 8319 section 4).
    let lifetime = if own.default_route { u16::MAX } else { 0 };

    let mut message = ArrayVec::<u8, 512>::new();
    // In the host's network only the address that DHCPv6 assigns is the guest's, to which published ports lead.
    let assigns = net.config.plan.extent == SubnetExtent::HostNetwork;
    let managed = match assigns && !net.config.disabled.contains(LinkService::Dhcpv6) {
        true => MANAGED,
        false => 0,
    };
    message.extend([
        ROUTER_ADVERTISEMENT,
        0,
        0,
        0,
        HOP_LIMIT,
        OTHER_CONFIGURATION | managed,
    ]);
    message.extend(lifetime.to_be_bytes());
    message.extend([0; 8]); // reachable time and retransmission timer: not specified

    message.extend([OPTION_SOURCE_MAC, 1]);
    message.extend(net.config.our_mac.0);

    message.extend([OPTION_MTU, 1, 0, 0]);
    message.extend(u32::from(net.config.mtu).to_be_bytes());

    // RFC 4862 section 5.5.3: a host ignores a prefix whose length does not leave room for a 64-bit interface id.
    let autonomous = if own.address.prefix_len() == 64 {
        AUTONOMOUS
    } else {
        0
    };
    message.extend([OPTION_PREFIX, 4, own.address.prefix_len(), ON_LINK | autonomous]);
    message.extend(FOREVER); // valid lifetime
    message.extend(FOREVER); // preferred lifetime
    message.extend([0; 4]);
    message.extend(own.address.network().octets());

    if let Some(dns) = own.dns.filter(|_| net.config.announces_dns()) {
        message.extend([OPTION_DNS, 3, 0, 0]);
        message.extend(FOREVER);
        message.extend(dns.octets());
    }
    let search = domains::encode(net.config.announced_search(), domains::LONGEST);
    if !search.is_empty() {
        let units = (8 + search.len()).div_ceil(8);
        message.extend([OPTION_SEARCH, u8::try_from(units).expect("at most 33"), 0, 0]);
        message.extend(FOREVER);
        let padding = units * 8 - 8 - search.len();
        message.extend(search);
        message.extend(core::iter::repeat_n(0, padding));
    }
    asker.reply(own.router).icmp(net, link, &mut message);
}

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// Flags of a neighbor advertisement (RFC 4861 section 4.4).
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// Hop limit that router advertisements announce for the guest's packets.
const HOP_LIMIT: u8 = 64;
/// Flags of a router advertisement: other configuration, and addresses, are available by DHCPv6 as well.
const OTHER_CONFIGURATION: u8 = 0x40;
const MANAGED: u8 = 0x80;

/// Flags of a prefix information option (RFC 4861 section 4.6.2).
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;
const FOREVER: [u8; 4] = [0xff; 4];

const OPTION_SOURCE_MAC: u8 = 1;
const OPTION_TARGET_MAC: u8 = 2;
const OPTION_PREFIX: u8 = 3;
const OPTION_MTU: u8 = 5;
/// Option types for DNS servers and search domains (RFC 8106 sections 5.1 and 5.2).
const OPTION_DNS: u8 = 25;
const OPTION_SEARCH: u8 = 31;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Ethernet address of the all-nodes multicast group (RFC 2464 section 7).
const ALL_NODES_MAC: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);
