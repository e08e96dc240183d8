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

/// Number of numbers, one for each address of the smaller network but its first and its last one.
const NUMBERS: u32 = (1 << 17) - 2;

/// Names with their addresses, shared by all workers: an IPv4 and an IPv6 address for each.
#[derive(Debug, Default)]
pub struct ProxyNames(Mutex<NameTable>);

/// Names by their numbers. The addresses of a number are computed.
///
/// New names have increasing numbers, and begin again behind the largest one, so that an address is used for another name as
/// late as possible: the guest may remember it for longer than [`LIFETIME`].
#[derive(Debug, Default)]
struct NameTable {
    entries: BTreeMap<u32, (HostName, Instant)>,
    numbers: BTreeMap<HostName, u32>,
    /// Numbers in the order of their last use.
    by_use: BTreeSet<(Instant, u32)>,
    /// Number that is tried first for the next new name.
    next: Option<u32>,
}

impl ProxyNames {
    /// Returns the number of a name, which is added if it is new; `None` if there are [`MOST_NAMES`] others in use. The first
    /// name of all has the number `first`, which is random, so that the addresses of an engine that has exited are most
    /// probably not used for other names.
    pub(crate) fn number(&self, name: &HostName, first: u32, now: Instant) -> Option<u32> {
        let mut table = self.lock();
        if let Some(&number) = table.numbers.get(name) {
            table.touch(number, now);
            return Some(number);
        }
        if table.entries.len() >= MOST_NAMES as usize {
            let &(used, number) = table.by_use.first()?;
            if now.since(used) < LIFETIME {
                return None;
            }
            table.remove(number);
        }
        let first = table.next.unwrap_or(first % NUMBERS);
        // There are more numbers than names.
        let number = (first..NUMBERS)
            .chain(0..first)
            .find(|number| !table.entries.contains_key(number))?;
        table.next = Some((number + 1) % NUMBERS);
        table.entries.insert(number, (name.clone(), now));
        table.numbers.insert(name.clone(), number);
        table.by_use.insert((now, number));
        Some(number)
    }

    /// Returns the name for which an address stands, and notes its use; `None` if it has not been used for [`LIFETIME`].
    pub(crate) fn name(&self, address: IpAddr, now: Instant) -> Option<HostName> {
        let number = number(address)?;
        let mut table = self.lock();
        let (name, used) = table.entries.get(&number)?.clone();
        if now.since(used) >= LIFETIME {
            return None;
        }
        table.touch(number, now);
        Some(name)
    }

    /// Returns the name for which an address stands, even if it has not been used for [`LIFETIME`].
    pub(crate) fn assigned(&self, address: IpAddr) -> Option<HostName> {
        let number = number(address)?;
        let table = self.lock();
        table.entries.get(&number).map(|(name, _)| name.clone())
    }

    /// Notes that a flow leads to an address. Returns true if the address stands for a name.
    pub(crate) fn renew(&self, address: IpAddr, now: Instant) -> bool {
        number(address).is_some_and(|number| self.lock().touch(number, now))
    }

    /// Returns all names with their numbers and the times of their last use, and the number that is tried first for the next name.
    pub(super) fn entries(&self) -> (Vec<(u32, HostName, Instant)>, Option<u32>) {
        let table = self.lock();
        let entry = |(number, (name, used)): (&u32, &(HostName, Instant))| (*number, name.clone(), *used);
        (table.entries.iter().map(entry).collect(), table.next)
    }

    /// Adds a name with its number. Returns false if the name or the number is another one's, or there are too many names.
    pub(super) fn restore(&self, number: u32, name: HostName, used: Instant) -> bool {
        let mut table = self.lock();
        match table.numbers.get(&name) {
            // The name is known already in this process.
            Some(&known) => known == number,
            None if table.entries.contains_key(&number)
                || number >= NUMBERS
                || table.entries.len() >= MOST_NAMES as usize =>
            {
                false
            }
            None => {
                table.by_use.insert((used, number));
                table.numbers.insert(name.clone(), number);
                table.entries.insert(number, (name, used));
                true
            }
        }
    }

    /// Sets the number that is tried first for the next name.
    pub(super) fn set_next(&self, next: Option<u32>) {
        self.lock().next = next.map(|next| next % NUMBERS);
    }

    /// Locks the table even after another worker has panicked with the lock. A name may be missing then.
    fn lock(&self) -> std::sync::MutexGuard<'_, NameTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NameTable {
    /// Notes the use of a number. Returns true if it stands for a name.
    fn touch(&mut self, number: u32, now: Instant) -> bool {
        let entry = self.entries.get_mut(&number);
        if let Some((_, used)) = entry {
            self.by_use.remove(&(*used, number));
            *used = now.max(*used);
            self.by_use.insert((*used, number));
            return true;
        }
        false
    }

    fn remove(&mut self, number: u32) {
        if let Some((name, used)) = self.entries.remove(&number) {
            self.numbers.remove(&name);
            self.by_use.remove(&(used, number));
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
            let number = names.number(&name(text), 0, T0).unwrap();
            let [v4, v6] = addresses(number);
            assert_eq!(v4, IpAddr::from([198, 18, 0, place as u8 + 1]));
            for address in [v4, v6] {
                assert!(NETWORKS.iter().any(|network| network.contains(&address)));
                assert_eq!(names.name(address, T0), Some(name(text)));
            }
        }
        assert_eq!(names.number(&name("a.example"), 7, T0), Some(0));
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
        let [v4, _] = addresses(names.number(&name("a.example"), 5, T0).unwrap());
        let late = T0 + LIFETIME - Duration::from_secs(1);
        assert_eq!(names.name(v4, late), Some(name("a.example")));
        assert_eq!(names.name(v4, T0 + LIFETIME), Some(name("a.example")));
        assert_eq!(names.name(v4, T0 + LIFETIME + LIFETIME), None);
        let again = names.number(&name("a.example"), 7, T0 + LIFETIME * 3);
        assert_eq!(again, Some(5));
        assert_eq!(names.name(v4, T0 + LIFETIME * 3), Some(name("a.example")));
    }

    /// Returns a table with `MOST_NAMES` names, of which each was used a second after the one before.
    fn full() -> (ProxyNames, Instant) {
        let names = ProxyNames::default();
        for place in 0..MOST_NAMES {
            let now = T0 + Duration::from_secs(place.into());
            let number = names.number(&name(&format!("n{place}.example")), 0, now);
            assert_eq!(number, Some(place));
        }
        (names, T0 + Duration::from_secs(MOST_NAMES.into()))
    }

    #[test]
    fn full_table_refuses_new_names_until_one_was_not_used_for_an_hour() {
        let (names, now) = full();
        // The oldest name has not been used for an hour. The new one has other addresses.
        let number = names.number(&name("x.example"), 0, now);
        assert_eq!(number, Some(MOST_NAMES));
        assert_eq!(names.name(addresses(MOST_NAMES)[0], now), Some(name("x.example")));
        assert_eq!(names.assigned(addresses(0)[0]), None);
        assert_eq!(names.lock().by_use.len(), MOST_NAMES as usize);
        for place in 1..MOST_NAMES {
            names.renew(addresses(place)[1], now);
        }
        assert_eq!(names.number(&name("y.example"), 0, now), None);
        assert_eq!(names.number(&name("n7.example"), 0, now), Some(7));
    }

    #[test]
    fn address_is_assigned_again_only_after_all_others() {
        let (names, mut now) = full();
        for place in MOST_NAMES..NUMBERS {
            now += Duration::from_secs(1);
            let number = names.number(&name(&format!("n{place}.example")), 0, now);
            assert_eq!(number, Some(place));
        }
        // An address in use is not assigned.
        names.renew(addresses(NUMBERS - 1)[0], now + LIFETIME);
        let late = now + LIFETIME * 2 - Duration::from_secs(1);
        assert_eq!(names.number(&name("x.example"), 0, late), Some(0));
        assert_eq!(
            names.assigned(addresses(NUMBERS - 1)[0]),
            Some(name(&format!("n{}.example", NUMBERS - 1)))
        );
        let [last, _] = addresses(NUMBERS - 1);
        assert_eq!(last, IpAddr::from([198, 19, 255, 254]));
    }

    #[test]
    fn first_number_is_given() {
        for first in [0, 77, NUMBERS - 1, NUMBERS, u32::MAX] {
            let names = ProxyNames::default();
            let number = names.number(&name("a.example"), first, T0);
            assert_eq!(number, Some(first % NUMBERS));
            let next = names.number(&name("b.example"), 3, T0);
            assert_eq!(next, Some((first % NUMBERS + 1) % NUMBERS));
        }
    }
}
