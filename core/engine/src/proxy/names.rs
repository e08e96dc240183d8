//! Addresses that stand for names: the proxy resolves the names, and the guest connects to the addresses.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pontoon_names::HostName;

use crate::Instant;

/// The networks of the addresses: one of RFC 2544, which is not routed on the Internet, and a unique local one (RFC 4193)
/// beside that of the guest.
pub const NETWORKS: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15)),
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0xfd70, 0x6f6e, 0x746f, 0x7078, 0, 0, 0, 0),
        64,
    )),
];

/// Time for which an address stands for its name after the last query and the last connection.
pub const LIFETIME: Duration = Duration::from_secs(3600);

/// Maximum number of names that have addresses at one time.
pub const MOST_NAMES: u32 = 16_384;

/// Names with their addresses, shared by all workers: an IPv4 and an IPv6 address for each.
#[derive(Debug, Default)]
pub struct ProxyNames(Mutex<NameTable>);

/// Names by their numbers. The addresses of a number are computed.
#[derive(Debug, Default)]
struct NameTable {
    entries: Vec<(HostName, Instant)>,
    numbers: BTreeMap<HostName, u32>,
    /// Numbers in the order of their last use.
    by_use: BTreeSet<(Instant, u32)>,
}

impl ProxyNames {
    /// Returns the number of a name, which is added if it is new; `None` if there are [`MOST_NAMES`] others in use.
    pub(crate) fn number(&self, name: &HostName, now: Instant) -> Option<u32> {
        let mut table = self.lock();
        if let Some(&number) = table.numbers.get(name) {
            table.touch(number, now);
            return Some(number);
        }
        let next = u32::try_from(table.entries.len()).ok()?;
        if next < MOST_NAMES {
            table.entries.push((name.clone(), now));
            table.numbers.insert(name.clone(), next);
            table.by_use.insert((now, next));
            return Some(next);
        }
        let &(used, number) = table.by_use.first()?;
        if now.since(used) < LIFETIME {
            return None;
        }
        table.touch(number, now);
        let former = core::mem::replace(&mut table.entries[number as usize].0, name.clone());
        table.numbers.remove(&former);
        table.numbers.insert(name.clone(), number);
        Some(number)
    }

    /// Returns the name for which an address stands, and notes its use.
    pub(crate) fn name(&self, address: IpAddr, now: Instant) -> Option<HostName> {
        let number = number(address)?;
        let mut table = self.lock();
        let (name, used) = table.entries.get(number as usize)?.clone();
        if now.since(used) >= LIFETIME {
            return None;
        }
        table.touch(number, now);
        Some(name)
    }

    /// Returns all names, in the order of their numbers, each with the time of its last use.
    pub(super) fn entries(&self) -> Vec<(HostName, Instant)> {
        self.lock().entries.clone()
    }

    /// Adds a name with the next number. Returns false if it is not new.
    pub(super) fn restore(&self, name: HostName, used: Instant) -> bool {
        let mut table = self.lock();
        let number = u32::try_from(table.entries.len()).unwrap_or(MOST_NAMES);
        let is_new = number < MOST_NAMES && table.numbers.insert(name.clone(), number).is_none();
        if is_new {
            table.entries.push((name, used));
            table.by_use.insert((used, number));
        }
        is_new
    }

    /// Locks the table even after another worker has panicked with the lock. A name may be missing then.
    fn lock(&self) -> std::sync::MutexGuard<'_, NameTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NameTable {
    fn touch(&mut self, number: u32, now: Instant) {
        if let Some((_, used)) = self.entries.get_mut(number as usize) {
            self.by_use.remove(&(*used, number));
            *used = now;
            self.by_use.insert((now, number));
        }
    }
}

/// Returns the addresses of a number: IPv4, IPv6. The first address of a network is that of no host.
pub(crate) fn addresses(number: u32) -> [IpAddr; 2] {
    NETWORKS.map(|network| match network {
        IpNet::V4(v4) => Ipv4Addr::from_bits(v4.network().to_bits() + 1 + number).into(),
        IpNet::V6(v6) => Ipv6Addr::from_bits(v6.network().to_bits() + 1 + u128::from(number)).into(),
    })
}

fn number(address: IpAddr) -> Option<u32> {
    let offset = match (address, NETWORKS) {
        (IpAddr::V4(address), [IpNet::V4(network), _]) => {
            u128::from(address.to_bits().checked_sub(network.network().to_bits())?)
        }
        (IpAddr::V6(address), [_, IpNet::V6(network)]) => {
            address.to_bits().checked_sub(network.network().to_bits())?
        }
        _ => return None,
    };
    u32::try_from(offset.checked_sub(1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    const T0: Instant = Instant(1_000_000_000);

    #[test]
    fn each_name_has_addresses_of_its_own() {
        let names = ProxyNames::default();
        for (place, text) in ["a.example", "b.example"].into_iter().enumerate() {
            let number = names.number(&name(text), T0).unwrap();
            let [v4, v6] = addresses(number);
            assert_eq!(v4, IpAddr::from([198, 18, 0, place as u8 + 1]));
            for address in [v4, v6] {
                assert!(NETWORKS.iter().any(|network| network.contains(&address)));
                assert_eq!(names.name(address, T0), Some(name(text)));
            }
        }
        assert_eq!(names.number(&name("a.example"), T0), Some(0));
        for unknown in [
            "198.18.0.0",
            "198.18.0.3",
            "198.17.255.255",
            "fd70:6f6e:746f:7078::",
            "::1",
        ] {
            assert_eq!(names.name(unknown.parse().unwrap(), T0), None, "{unknown}");
        }
    }

    #[test]
    fn address_stands_for_its_name_for_an_hour_after_its_last_use() {
        let names = ProxyNames::default();
        let [v4, _] = addresses(names.number(&name("a.example"), T0).unwrap());
        let late = T0 + LIFETIME - Duration::from_secs(1);
        assert_eq!(names.name(v4, late), Some(name("a.example")));
        assert_eq!(names.name(v4, T0 + LIFETIME), Some(name("a.example")));
        assert_eq!(names.name(v4, T0 + LIFETIME + LIFETIME), None);
        let again = names.number(&name("a.example"), T0 + LIFETIME * 3);
        assert_eq!(again, Some(0));
        assert_eq!(names.name(v4, T0 + LIFETIME * 3), Some(name("a.example")));
    }

    #[test]
    fn full_table_refuses_new_names_until_one_was_not_used_for_an_hour() {
        let names = ProxyNames::default();
        for place in 0..MOST_NAMES {
            let number = names.number(
                &name(&format!("n{place}.example")),
                T0 + Duration::from_secs(place.into()),
            );
            assert_eq!(number, Some(place));
        }
        let now = T0 + Duration::from_secs(MOST_NAMES.into());
        // The oldest names have not been used for an hour.
        assert_eq!(names.number(&name("x.example"), now), Some(0));
        assert_eq!(names.name(addresses(0)[0], now), Some(name("x.example")));
        let names = ProxyNames::default();
        for place in 0..MOST_NAMES {
            names.number(&name(&format!("n{place}.example")), T0).unwrap();
        }
        assert_eq!(names.number(&name("x.example"), T0), None);
        assert_eq!(names.number(&name("n7.example"), T0), Some(7));
        assert_eq!(names.lock().by_use.len(), MOST_NAMES as usize);
    }
}
