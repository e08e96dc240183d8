//! Addresses of the simulated world, which are pontoon's defaults.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use pontoon_engine::Config;
use pontoon_engine::address_plan::AddressPlan;
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
    Config {
        our_mac: OUR_MAC,
        guest_mac: GUEST_MAC,
        mtu,
        connect_timeout: Some(Duration::from_secs(10)),
        max_flows: 1 << 16,
        ..Config::new(AddressPlan::usual(true))
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
