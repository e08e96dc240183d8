//! Addresses of the guest's link, which the engine assigns by DHCP, DHCPv6 and router advertisements.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pontoon_engine::address_plan::AddressPlan;

/// Addresses of the guest's link. A guest that uses no DHCP and no router advertisements configures them itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Addresses {
    /// The IPv4 side; `None` if the guest has no IPv4.
    pub ipv4: Option<LinkAddresses<Ipv4Addr>>,
    /// The IPv6 side; `None` if the guest has no IPv6.
    pub ipv6: Option<LinkAddresses<Ipv6Addr>>,
}

/// Addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkAddresses<A> {
    /// The guest's address.
    pub guest: A,
    /// Length of the prefix of the guest's subnet in bits.
    pub prefix_len: u8,
    /// The gateway of the guest's default route.
    pub gateway: A,
    /// Address of the DNS forwarder; `None` if there is none.
    pub dns: Option<A>,
}

impl Addresses {
    /// Returns the addresses of `plan`. Without resolvers there is no DNS forwarder.
    pub(crate) fn of(plan: &AddressPlan, has_dns: bool) -> Self {
        Self {
            ipv4: plan.v4.as_ref().map(|v4| LinkAddresses {
                guest: v4.address.addr(),
                prefix_len: v4.address.prefix_len(),
                gateway: v4.gateway,
                dns: v4.dns.filter(|_| has_dns),
            }),
            ipv6: plan.v6.as_ref().map(|v6| LinkAddresses {
                guest: v6.address.addr(),
                prefix_len: v6.address.prefix_len(),
                gateway: v6.gateway,
                dns: v6.dns.filter(|_| has_dns),
            }),
        }
    }

    /// Returns the gateways of both families.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.ipv4.map(|v4| IpAddr::V4(v4.gateway));
        v4.into_iter().chain(self.ipv6.map(|v6| v6.gateway.into()))
    }
}
