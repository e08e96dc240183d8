//! Services of the guest's link, and the filter of UDP.

use pontoon_engine::config;

/// A protocol or service of the guest's link that can be disabled ([`NetworkBuilder::disable`](crate::NetworkBuilder::disable)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkService {
    /// DHCP for IPv4.
    Dhcp,
    /// DHCP for IPv6.
    Dhcpv6,
    /// Neighbour advertisements (RFC 4861).
    Ndp,
    /// Router advertisements (RFC 4861).
    RouterAdvertisement,
    /// TCP.
    Tcp,
    /// UDP, with the DNS forwarder's part.
    Udp,
    /// ICMP and ICMPv6 echo.
    Icmp,
    /// The DNS forwarder and the search domains in DHCP, DHCPv6 and router advertisements.
    DnsOption,
}

/// The senders whose datagrams a guest's UDP endpoint receives (RFC 4787 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UdpFilter {
    /// All senders.
    Endpoint,
    /// Addresses to which the endpoint has sent a datagram, until 120 s after the last datagram in either direction.
    Address,
    /// Addresses and ports to which the endpoint has sent a datagram, for as long.
    AddressPort,
}

impl LinkService {
    pub(crate) fn of_engine(self) -> config::LinkService {
        match self {
            Self::Dhcp => config::LinkService::Dhcp,
            Self::Dhcpv6 => config::LinkService::Dhcpv6,
            Self::Ndp => config::LinkService::Ndp,
            Self::RouterAdvertisement => config::LinkService::RouterAdvertisement,
            Self::Tcp => config::LinkService::Tcp,
            Self::Udp => config::LinkService::Udp,
            Self::Icmp => config::LinkService::Icmp,
            Self::DnsOption => config::LinkService::DnsOption,
        }
    }
}

impl UdpFilter {
    pub(crate) fn of_engine(self) -> config::UdpFilter {
        match self {
            Self::Endpoint => config::UdpFilter::Endpoint,
            Self::Address => config::UdpFilter::Address,
            Self::AddressPort => config::UdpFilter::AddressPort,
        }
    }
}
