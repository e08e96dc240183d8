//! Metadata services of cloud providers.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses at which clouds and their container platforms provide a machine's metadata, including credentials, to any
/// program on it. Without this list, those outside of 169.254.0.0/16 would be reachable like any other address.
pub(super) const METADATA: [IpAddr; 10] = [
    // EC2, Google Cloud, Azure and most others.
    v4(169, 254, 169, 254),
    // Credentials of ECS tasks and EKS pods.
    v4(169, 254, 170, 2),
    v4(169, 254, 170, 23),
    // Azure WireServer, Alibaba Cloud.
    v4(168, 63, 129, 16),
    v4(100, 100, 100, 200),
    // EC2, EKS pods, Google Cloud, Oracle Cloud, Scaleway.
    v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]),
    v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23]),
    v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]),
    v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe]),
    v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42]),
];

/// Returns true if `address` is that of a cloud's metadata service.
#[must_use]
pub fn is_metadata(address: IpAddr) -> bool {
    METADATA.contains(&address)
}

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(segments: [u16; 8]) -> IpAddr {
    let [a, b, c, d, e, f, g, h] = segments;
    IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h))
}
