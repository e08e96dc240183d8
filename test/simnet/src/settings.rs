//! Addresses of the simulated world, which are pontoon's defaults.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};
use pontoon_engine::Config;
use pontoon_engine::config::{Addresses, UdpFilter, V4, V6};
use pontoon_wire::Mac;

use crate::guest::Addressing;

/// Ethernet address of the engine, which the guest uses as its gateway.
pub const OUR_MAC: Mac = Mac([0x02, 0x70, 0x6f, 0x6e, 0x74, 0x6f]);

/// Ethernet address of the guest.
pub const GUEST_MAC: Mac = Mac([0x02, 0x67, 0x75, 0x65, 0x73, 0x74]);

/// IPv4 address of the guest.
pub const GUEST_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

/// IPv6 address of the guest.
pub const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0xfd70, 0x6f6e, 0x746f, 0, 0, 0, 0, 0x15);

/// IPv4 address of the server on the host's side (TEST-NET-3).
pub const SERVER_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

/// IPv6 address of the server on the host's side (documentation prefix, RFC 3849).
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);

/// Returns the engine's default configuration, without resolvers and published ports.
#[must_use]
pub fn config(mtu: u16) -> Config {
    let gateway_v4 = Ipv4Addr::new(10, 0, 2, 2);
    let prefix = Ipv6Addr::new(0xfd70, 0x6f6e, 0x746f, 0, 0, 0, 0, 0);
    Config {
        addresses: Addresses {
            v4: V4 {
                subnet: Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 2, 0), 24),
                gateway: gateway_v4,
                dns: Ipv4Addr::new(10, 0, 2, 3),
                guest: GUEST_V4,
            },
            v6: Some(V6 {
                subnet: Ipv6Net::new_assert(prefix, 64),
                gateway: Ipv6Addr::new(0xfd70, 0x6f6e, 0x746f, 0, 0, 0, 0, 2),
                router: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2),
                dns: Ipv6Addr::new(0xfd70, 0x6f6e, 0x746f, 0, 0, 0, 0, 3),
                guest: GUEST_V6,
                default_route: true,
            }),
        },
        our_mac: OUR_MAC,
        guest_mac: GUEST_MAC,
        mtu,
        hostname: None,
        search: Vec::new(),
        resolvers: Vec::new(),
        host_loopback: Vec::new(),
        host_addresses: false,
        metadata: false,
        egress: pontoon_engine::Egress::default(),
        published: Vec::new(),
        connect_timeout: Some(Duration::from_secs(10)),
        udp_filter: UdpFilter::Address,
        max_flows: 1 << 16,
        max_udp_ports: 7_058,
        max_flow_rate: None,
        bandwidth: None,
    }
}

/// Returns the addresses of the guest and its gateway.
#[must_use]
pub fn addressing() -> Addressing {
    Addressing {
        addresses: [IpAddr::V4(GUEST_V4), IpAddr::V6(GUEST_V6)],
        mac: GUEST_MAC,
        gateway: OUR_MAC,
    }
}
