//! Accounts of the hosts that report groups, so that no host takes all memberships of an interface.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The groups of each reporter. Each group is in one account.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Groups by reporter, each with a number that counts up in the order in which groups were added.
    groups: BTreeMap<IpAddr, BTreeMap<u64, IpAddr>>,
    /// Reporters by number of groups.
    by_count: BTreeSet<(usize, IpAddr)>,
    added: u64,
}

/// The account of a group: its reporter, and its number in the order in which groups were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    reporter: IpAddr,
    number: u64,
}

impl Accounts {
    /// Adds a new group to the account of a reporter.
    pub(super) fn add(&mut self, reporter: IpAddr, group: IpAddr) -> Entry {
        self.added += 1;
        let entry = Entry {
            reporter,
            number: self.added,
        };
        self.insert(entry, group);
        entry
    }

    /// Removes a group from its account.
    pub(super) fn remove(&mut self, entry: Entry) {
        let count = self.count(entry.reporter);
        let Some(groups) = self.groups.get_mut(&entry.reporter) else {
            return;
        };
        groups.remove(&entry.number);
        let left = groups.len();
        self.by_count.remove(&(count, entry.reporter));
        match left {
            0 => drop(self.groups.remove(&entry.reporter)),
            left => drop(self.by_count.insert((left, entry.reporter))),
        }
    }

    /// Moves a group to the account of another host that has reported it, if that host has fewer groups. A host with many
    /// groups cannot take over those of others, to have them evicted with its own.
    pub(super) fn share(&mut self, entry: &mut Entry, reporter: IpAddr, group: IpAddr) {
        if self.count(reporter) + 1 < self.count(entry.reporter) {
            self.remove(*entry);
            entry.reporter = reporter;
            self.insert(*entry, group);
        }
    }

    /// Returns the newest group of the reporter that has the most groups, if it has at least two more than `reporter`, so
    /// that the group of that reporter may be evicted for one of `reporter`.
    pub(super) fn evictable_for(&self, reporter: IpAddr) -> Option<IpAddr> {
        let (most, of) = self.by_count.last()?;
        if *most < self.count(reporter) + 2 {
            return None;
        }
        self.groups.get(of)?.last_key_value().map(|(_, group)| *group)
    }

    fn insert(&mut self, entry: Entry, group: IpAddr) {
        let count = self.count(entry.reporter);
        self.by_count.remove(&(count, entry.reporter));
        self.by_count.insert((count + 1, entry.reporter));
        let groups = self.groups.entry(entry.reporter).or_default();
        groups.insert(entry.number, group);
    }

    fn count(&self, reporter: IpAddr) -> usize {
        self.groups.get(&reporter).map_or(0, BTreeMap::len)
    }
}
