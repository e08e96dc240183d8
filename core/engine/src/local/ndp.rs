//! IPv6 neighbour discovery (RFC 4861): solicitations for all addresses but the guest's are answered, and those for routers.

use core::net::{IpAddr, Ipv6Addr};

use arrayvec::ArrayVec;
use pontoon_wire::{Mac, frame, protocol};

use super::domains;
use super::reply::Reply;
use crate::address_plan::Ipv6Plan;
use crate::ctx::Net;
use crate::{Frame, Transmit};

/// Returns true if a message never leaves the link: neighbour discovery, or multicast listener reports (RFC 2710, RFC
/// 3810).
pub(super) fn is_link_scoped(ip: &frame::Ip, icmp: &frame::Icmp) -> bool {
    ip.protocol == protocol::ICMPV6
        && ip.source.is_ipv6()
        && matches!(icmp.kind, 130..=132 | ROUTER_SOLICITATION..=REDIRECT | 143)
}

/// Answers solicitations; other link-scoped messages are dropped.
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
    // Sections 6.1.1 and 7.1.1. The checksum is not verified: nothing corrupts a frame between the guest and the engine.
    if ip.hop_limit != 255 || icmp.code != 0 || source.is_multicast() {
        net.counters.malformed += 1;
        return;
    }
    let asker = Asker {
        mac: asker_mac,
        address: source,
    };
    if icmp.kind == ROUTER_SOLICITATION {
        advertise_router(asker, &own, net, link);
        return;
    }
    let mut target = [0; 16];
    if icmp.payload_len < 16 || frame.copy(icmp.payload_offset, &mut target) < 16 || target[0] == 0xff {
        net.counters.malformed += 1;
        return;
    }
    advertise_neighbour(asker, target.into(), &own, net, link);
}

#[derive(Clone, Copy)]
struct Asker {
    mac: Mac,
    address: Ipv6Addr,
}

impl Asker {
    /// Returns a reply to the asker, or to all nodes if the asker has no address yet.
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

fn advertise_neighbour<T: Transmit>(
    asker: Asker,
    target: Ipv6Addr,
    own: &Ipv6Plan,
    net: &mut Net,
    link: &mut T,
) {
    let is_own = own.is_engine(target);
    let is_guest = own.addresses().any(|net| net.addr() == target);
    let duplicate_detection = asker.address.is_unspecified();
    if is_guest || target == asker.address || (duplicate_detection && !is_own) {
        // Its own, or an address that it is about to take and may have (RFC 4862 section 5.4.3).
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

fn advertise_router<T: Transmit>(asker: Asker, own: &Ipv6Plan, net: &mut Net, link: &mut T) {
    // Advertisements are sent only in response to solicitations, so the lifetimes are infinite where the format allows that,
    // and the router's is the maximum (RFC 8319 section 4).
    let lifetime = if own.default_route { u16::MAX } else { 0 };

    let mut message = ArrayVec::<u8, 512>::new();
    message.extend([ROUTER_ADVERTISEMENT, 0, 0, 0, HOP_LIMIT, OTHER_CONFIGURATION]);
    message.extend(lifetime.to_be_bytes());
    message.extend([0; 8]); // reachable and retransmission time: the guest's own defaults

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
    message.extend(FOREVER); // valid
    message.extend(FOREVER); // preferred
    message.extend([0; 4]);
    message.extend(own.address.network().octets());

    if let Some(dns) = own.dns.filter(|_| !net.config.resolvers.is_empty()) {
        message.extend([OPTION_DNS, 3, 0, 0]);
        message.extend(FOREVER);
        message.extend(dns.octets());
    }
    let search = domains::encode(&net.config.search, domains::LONGEST);
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

/// Flags of a neighbour advertisement, RFC 4861 section 4.4.
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// The hop limit for the guest's packets, as routers announce it.
const HOP_LIMIT: u8 = 64;
/// The O flag alone: addresses come from the prefix, the rest also from DHCPv6.
const OTHER_CONFIGURATION: u8 = 0x40;

/// Flags of a prefix, RFC 4861 section 4.6.2.
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;
const FOREVER: [u8; 4] = [0xff; 4];

const OPTION_SOURCE_MAC: u8 = 1;
const OPTION_TARGET_MAC: u8 = 2;
const OPTION_PREFIX: u8 = 3;
const OPTION_MTU: u8 = 5;
/// RFC 8106 sections 5.1 and 5.2.
const OPTION_DNS: u8 = 25;
const OPTION_SEARCH: u8 = 31;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// RFC 2464 section 7.
const ALL_NODES_MAC: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);
