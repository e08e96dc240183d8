//! The host's own addresses; packets to them arrive at the host itself.

use core::net::IpAddr;
use std::collections::HashSet;

use ipnet::IpNet;

/// Set of the host's own addresses, and of ranges whose addresses all belong to the host (`ip route add local PREFIX`).
#[derive(Clone, Debug, Default)]
pub struct Owned {
    addresses: HashSet<IpAddr>,
    ranges: Vec<IpNet>,
}

impl Owned {
    /// Returns true if `address` belongs to the host.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address) || self.ranges.iter().any(|range| range.contains(&address))
    }
}

impl FromIterator<IpNet> for Owned {
    fn from_iter<I: IntoIterator<Item = IpNet>>(all: I) -> Self {
        let mut owned = Self::default();
        for net in all {
            if net.prefix_len() == net.max_prefix_len() {
                owned.addresses.insert(net.addr());
            } else {
                owned.ranges.push(net);
            }
        }
        owned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_ranges_are_owned() {
        let nets = [
            "192.0.2.1/32",
            "198.51.100.0/24",
            "2001:db8::/64",
            "2001:db8:1::1/128",
        ];
        let owned: Owned = nets.iter().map(|net| net.parse::<IpNet>().unwrap()).collect();
        for (address, expected) in [
            ("192.0.2.1", true),
            ("192.0.2.2", false),
            ("198.51.100.0", true),
            ("198.51.100.255", true),
            ("198.51.101.0", false),
            ("2001:db8::ffff", true),
            ("2001:db8:1::1", true),
            ("2001:db8:1::", false),
        ] {
            assert_eq!(owned.contains(address.parse().unwrap()), expected, "{address}");
        }
    }
}
