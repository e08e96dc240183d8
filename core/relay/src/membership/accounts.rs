//! Accounts of the hosts that report memberships, so that no host takes all memberships of an interface.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// A membership of a group: for one sender, or for any sender if `source` is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) group: IpAddr,
    pub(super) source: Option<IpAddr>,
}

/// The memberships of each reporter. Each membership is in one account.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Memberships by reporter, each with a number that counts up in the order in which memberships were added.
    members: BTreeMap<IpAddr, BTreeMap<u64, Member>>,
    /// Reporters by number of memberships.
    by_count: BTreeSet<(usize, IpAddr)>,
    added: u64,
    total: usize,
}

/// The account of a membership: its reporter, and its number in the order in which memberships were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    reporter: IpAddr,
    number: u64,
}

impl Accounts {
    /// Returns the number of memberships in all accounts.
    pub(super) const fn total(&self) -> usize {
        self.total
    }

    /// Adds a new membership to the account of a reporter.
    pub(super) fn add(&mut self, reporter: IpAddr, member: Member) -> Entry {
        self.added += 1;
        let entry = Entry {
            reporter,
            number: self.added,
        };
        self.insert(entry, member);
        entry
    }

    /// Removes a membership from its account.
    pub(super) fn remove(&mut self, entry: Entry) {
        let count = self.count(entry.reporter);
        let Some(members) = self.members.get_mut(&entry.reporter) else {
            return;
        };
        self.total -= usize::from(members.remove(&entry.number).is_some());
        let left = members.len();
        self.by_count.remove(&(count, entry.reporter));
        match left {
            0 => drop(self.members.remove(&entry.reporter)),
            left => drop(self.by_count.insert((left, entry.reporter))),
        }
    }

    /// Moves a membership to the account of another host that has reported it, if that host has fewer memberships. A host
    /// with many memberships cannot take over those of others, to have them evicted with its own.
    pub(super) fn share(&mut self, entry: &mut Entry, reporter: IpAddr, member: Member) {
        if self.count(reporter) + 1 < self.count(entry.reporter) {
            self.remove(*entry);
            entry.reporter = reporter;
            self.insert(*entry, member);
        }
    }

    /// Returns the newest membership of the reporter that has the most memberships, if it has at least two more than
    /// `reporter`, so that the membership of that reporter may be evicted for one of `reporter`.
    pub(super) fn evictable_for(&self, reporter: IpAddr) -> Option<Member> {
        let (most, of) = self.by_count.last()?;
        if *most < self.count(reporter) + 2 {
            return None;
        }
        self.members.get(of)?.last_key_value().map(|(_, member)| *member)
    }

    fn insert(&mut self, entry: Entry, member: Member) {
        let count = self.count(entry.reporter);
        self.by_count.remove(&(count, entry.reporter));
        self.by_count.insert((count + 1, entry.reporter));
        let members = self.members.entry(entry.reporter).or_default();
        members.insert(entry.number, member);
        self.total += 1;
    }

    fn count(&self, reporter: IpAddr) -> usize {
        self.members.get(&reporter).map_or(0, BTreeMap::len)
    }
}
