//! Options of the guest's addresses, from which its address plan is chosen.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pontoon_engine::address_plan::PlannedRoute;

/// Addresses, gateways and routes of the guest's interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addressing {
    /// The origin of everything that the other fields do not contain.
    pub source: AddressSource,
    /// The guest's IPv4 side.
    pub ipv4: Ipv4,
    /// Value of `--ipv6` and `--no-ipv6`: IPv6 subnet of the guest.
    pub ipv6: Ipv6,
    /// The guest's addresses with the prefix lengths of their subnets, in place of the source's of the same family. The
    /// first of a family is the one that DHCP or DHCPv6 leases.
    pub addresses: Vec<IpNet>,
    /// Gateways, at most one for each family.
    pub gateways: Vec<IpAddr>,
    /// Routes in addition to those of the source.
    pub routes: Vec<PlannedRoute>,
    /// Addresses of the DNS forwarder, at most one for each family.
    pub dns: Vec<IpAddr>,
    /// True if only the first address of each family is taken over from an interface of the host.
    pub one_host_address: bool,
    /// True if no routes but the default ones are taken over from an interface of the host.
    pub no_host_routes: bool,
}

/// The origin of the guest's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressSource {
    /// Subnets that exist only on the guest's link.
    #[default]
    Private,
    /// The addresses and routes of an interface of the host: of this one, or `None`: of that with the default route.
    Host(Option<String>),
    /// Same as `Host`; an IPv4 side that the interface lacks, and everything if there is no default route, is as in
    /// `Private`.
    Auto(Option<String>),
}

/// The guest's IPv4 side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ipv4 {
    /// In a private plan, the first subnet that the host does not use.
    #[default]
    Auto,
    /// This private subnet.
    Subnet(Ipv4Net),
    /// No IPv4.
    Off,
}

/// Value of `--ipv6` and `--no-ipv6`: IPv6 subnet of the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ipv6 {
    /// In a private plan, the first subnet that the host does not use.
    #[default]
    Auto,
    /// This private subnet, a /64.
    Subnet(Ipv6Net),
    /// The guest has no IPv6.
    Off,
}
