//! Group memberships of an interface: the router side of IGMP (RFC 2236, RFC 3376) and MLD (RFC 2710, RFC 3810).
//!
//! One [`Querier`] for each interface and family handles reports, expires memberships and schedules queries. It runs in a
//! sandboxed process, as it reads packets of untrusted hosts. The supervisor keeps the [`Memberships`] that the querier
//! reports, and a proxy (RFC 4605) makes rules of them. There are two simplifications, both to the hosts' advantage: a host
//! that excludes some senders of a group receives all of them, and a group that one host wants from any sender is wanted
//! from any sender for the whole interface.
//!
//! Time is the duration since a moment that the caller chooses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

pub mod message;
#[cfg(test)]
mod tests;

use message::{Message, Query, Record, SourceChange};

use crate::rule::parse::unreachable;

/// State of the querier election and group memberships of one interface and family.
#[derive(Debug)]
pub struct Querier {
    address: IpAddr,
    /// Queries can be sent: the interface has an address of the family.
    can_send: bool,
    role: Role,
    groups: BTreeMap<IpAddr, Group>,
    /// Group-specific and source-specific queries, each with the time at which it is due.
    pending_queries: Vec<(Duration, Query)>,
    /// Groups whose source filter has changed since [`Querier::next_change`] returned it.
    changed: BTreeSet<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// This router sends queries. `startup_queries` of them are still to be sent at the shorter startup interval.
    Querier { next: Duration, startup_queries: u8 },
    /// A router with a lower address sends queries, unless none arrives before `until`.
    NonQuerier { until: Duration },
}

/// Expiry times of a group's memberships. A time of zero means that there is no such membership.
#[derive(Debug, Default)]
struct Group {
    any_until: Duration,
    sources: BTreeMap<IpAddr, Duration>,
}

/// The senders from which a group is wanted on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceFilter {
    /// Any sender.
    Any,
    /// Only these senders (INCLUDE mode of RFC 3376); an empty list ends the membership.
    Sources(Vec<IpAddr>),
}

impl Querier {
    /// `address` is the source address of queries.
    #[must_use]
    pub fn new(address: IpAddr, now: Duration) -> Self {
        Self {
            address,
            can_send: true,
            role: Role::Querier {
                next: now,
                startup_queries: ROBUSTNESS,
            },
            groups: BTreeMap::new(),
            pending_queries: Vec::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Changes the source address of queries. Memberships are kept, and one general query is due.
    pub fn set_address(&mut self, address: IpAddr, now: Duration) {
        self.address = address;
        self.role = Role::Querier {
            next: now,
            startup_queries: 1,
        };
    }

    /// Sets whether queries can be sent. Meanwhile a leave does not shorten a membership.
    pub const fn set_can_send(&mut self, can_send: bool) {
        self.can_send = can_send;
    }

    /// Adds a membership that a predecessor has reported. It expires at `until` unless a host reports it before. It is not
    /// reported to the supervisor again.
    pub fn restore(&mut self, group: IpAddr, filter: SourceFilter, until: Duration) {
        let restored = self.groups.entry(group).or_default();
        match filter {
            SourceFilter::Any => restored.any_until = until,
            SourceFilter::Sources(sources) => {
                restored
                    .sources
                    .extend(sources.into_iter().map(|source| (source, until)));
            }
        }
    }

    /// Handles a report of a host or a query of another router. Memberships beyond the limits are ignored.
    pub fn handle(&mut self, message: Message, now: Duration) {
        match message {
            Message::Reports(records) => {
                for record in records {
                    self.handle_record(record, now);
                }
            }
            Message::Query { from, group, sources } => self.handle_query(from, group, &sources, now),
        }
    }

    /// Removes expired memberships and returns the queries that are due.
    pub fn tick(&mut self, now: Duration) -> Vec<Query> {
        self.expire(now);
        if let Role::NonQuerier { until } = self.role
            && until <= now
        {
            self.role = Role::Querier {
                next: now,
                startup_queries: ROBUSTNESS,
            };
        }
        let Role::Querier {
            next,
            startup_queries,
        } = self.role
        else {
            self.pending_queries.clear();
            return Vec::new();
        };
        let mut queries = Vec::new();
        if next <= now {
            queries.push(Query::general());
            let interval = if startup_queries > 1 {
                QUERY_INTERVAL / 4
            } else {
                QUERY_INTERVAL
            };
            self.role = Role::Querier {
                next: now + interval,
                startup_queries: startup_queries.saturating_sub(1),
            };
        }
        self.pending_queries.retain(|(at, query)| {
            if *at > now {
                return true;
            }
            queries.push(query.clone());
            false
        });
        queries
    }

    /// Returns the time at which [`Querier::tick`] is due next.
    #[must_use]
    pub fn next_tick(&self) -> Duration {
        let role = match self.role {
            Role::Querier { next, .. } => next,
            Role::NonQuerier { until } => until,
        };
        let expiry = self.groups.values().flat_map(|group| {
            let any_until = (!group.any_until.is_zero()).then_some(group.any_until);
            group.sources.values().copied().chain(any_until)
        });
        let pending = self.pending_queries.iter().map(|(at, _)| *at);
        expiry.chain(pending).fold(role, Duration::min)
    }

    /// Returns the next group whose source filter has changed, with the filter that it has now, and removes it from the list
    /// of changes.
    pub fn next_change(&mut self) -> Option<(IpAddr, SourceFilter)> {
        let group = self.changed.pop_first()?;
        let filter = match self.groups.get(&group) {
            None => SourceFilter::Sources(Vec::new()),
            Some(found) if !found.any_until.is_zero() => SourceFilter::Any,
            Some(found) => SourceFilter::Sources(found.sources.keys().copied().collect()),
        };
        Some((group, filter))
    }

    /// Puts a group back into the list of changes, as its filter could not be reported.
    pub fn retry_change(&mut self, group: IpAddr) {
        self.changed.insert(group);
    }

    /// Returns true if [`Querier::next_change`] has something to return.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    fn expire(&mut self, now: Duration) {
        let changed = &mut self.changed;
        self.groups.retain(|address, group| {
            let count = group.sources.len();
            group.sources.retain(|_, until| *until > now);
            let has_any = !group.any_until.is_zero();
            if group.any_until <= now {
                group.any_until = Duration::ZERO;
            }
            let is_any = !group.any_until.is_zero();
            // Sources do not matter while any sender is wanted.
            if is_any != has_any || (!is_any && group.sources.len() != count) {
                changed.insert(*address);
            }
            is_any || !group.sources.is_empty()
        });
    }

    /// Returns true if there is no room for a group. The supervisor, which has the same limit, still has groups whose removal has not
    /// been reported.
    fn is_full_for(&self, group: IpAddr) -> bool {
        let is_removed = |group: &&IpAddr| !self.groups.contains_key(*group);
        !self.groups.contains_key(&group)
            && !self.changed.contains(&group)
            && (self.groups.len() >= MAX_GROUPS
                || self.groups.len() + self.changed.iter().filter(is_removed).count() >= MAX_GROUPS)
    }

    fn handle_record(&mut self, record: Record, now: Duration) {
        let Record { group, change } = record;
        if !is_routable(group) || group.is_ipv4() != self.address.is_ipv4() || self.is_full_for(group) {
            return;
        }
        match change {
            SourceChange::Any => {
                let found = self.groups.entry(group).or_default();
                if found.any_until <= now {
                    self.changed.insert(group);
                }
                found.any_until = now + GROUP_MEMBERSHIP_INTERVAL;
                // The group is still wanted, so pending queries for it are of no use.
                self.pending_queries
                    .retain(|(_, query)| query.group != Some(group));
            }
            SourceChange::Include { sources, exclusive } => self.include(group, &sources, exclusive, now),
            SourceChange::Block(sources) => self.block(group, &sources, now),
        }
    }

    /// Adds sources of a group. If `exclusive`, the host no longer wants the group from any sender, so the group is
    /// queried in case another host does.
    fn include(&mut self, group: IpAddr, sources: &[IpAddr], exclusive: bool, now: Duration) {
        let until = now + GROUP_MEMBERSHIP_INTERVAL;
        let can_schedule_query = self.can_schedule_query();
        let valid = sources.iter().filter(|source| is_source_for(**source, group));
        if sources.is_empty() && !self.groups.contains_key(&group) {
            return;
        }
        let found = self.groups.entry(group).or_default();
        for source in valid {
            if found.sources.len() >= MAX_SOURCES && !found.sources.contains_key(source) {
                continue;
            }
            if found.sources.insert(*source, until).is_none() && found.any_until.is_zero() {
                self.changed.insert(group);
            }
        }
        let last_member_until = now + LAST_MEMBER_QUERY_TIME;
        if exclusive && found.any_until > last_member_until && can_schedule_query {
            found.any_until = last_member_until;
            self.schedule_query(Query::group(group), now);
        }
    }

    /// Queries the senders that a host no longer wants, in case another host does.
    fn block(&mut self, group: IpAddr, sources: &[IpAddr], now: Duration) {
        let can_schedule_query = self.can_schedule_query();
        let Some(found) = self.groups.get_mut(&group).filter(|_| can_schedule_query) else {
            return;
        };
        let last_member_until = now + LAST_MEMBER_QUERY_TIME;
        let mut queried = Vec::new();
        for source in sources {
            let until = found.sources.get_mut(source);
            if let Some(until) = until.filter(|until| **until > last_member_until) {
                *until = last_member_until;
                queried.push(*source);
            }
        }
        if !queried.is_empty() {
            self.schedule_query(Query::sources(group, queried), now);
        }
    }

    /// Handles a query of another router. The router with the lowest address remains the querier.
    fn handle_query(&mut self, from: IpAddr, group: Option<IpAddr>, sources: &[IpAddr], now: Duration) {
        // Addresses of the other family, in a forged frame, take no part in the election.
        if from.is_unspecified() || from.is_ipv4() != self.address.is_ipv4() || from >= self.address {
            return;
        }
        self.role = Role::NonQuerier {
            until: now + OTHER_QUERIER_PRESENT_INTERVAL,
        };
        let Some(found) = group.and_then(|group| self.groups.get_mut(&group)) else {
            return;
        };
        let last_member_until = now + LAST_MEMBER_QUERY_TIME;
        if sources.is_empty() {
            found.any_until = found.any_until.min(last_member_until);
        }
        for source in sources {
            if let Some(until) = found.sources.get_mut(source) {
                *until = (*until).min(last_member_until);
            }
        }
    }

    /// Returns true if a query would be sent. Otherwise a leave does not shorten a membership, as its other hosts would not be
    /// queried: a non-querier shortens it upon the querier's query (RFC 3376 section 6.6.1).
    fn can_schedule_query(&self) -> bool {
        matches!(self.role, Role::Querier { .. }) && self.can_send && self.pending_queries.len() < MAX_GROUPS
    }

    /// Schedules a query now and once more. [`Querier::can_schedule_query`] is true.
    fn schedule_query(&mut self, query: Query, now: Duration) {
        self.pending_queries.push((now, query.clone()));
        self.pending_queries
            .push((now + LAST_MEMBER_QUERY_TIME / 2, query));
    }
}

/// The memberships of one interface and family that a querier has reported. The querier's process may be compromised, so
/// each report is checked.
#[derive(Debug)]
pub struct Memberships {
    v6: bool,
    /// Each group with the position at which it was added and its filter.
    groups: BTreeMap<IpAddr, (u64, SourceFilter)>,
    added: u64,
}

/// A reported membership that no querier reports: the group cannot be routed or is of another family, a sender is not a
/// unicast address, or there are too many of either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid membership")]
pub struct InvalidMembership;

impl Memberships {
    /// No memberships of a family.
    #[must_use]
    pub fn new(v6: bool) -> Self {
        Self {
            v6,
            groups: BTreeMap::new(),
            added: 0,
        }
    }

    /// Sets the source filter of a group. A filter without senders removes the group.
    ///
    /// # Errors
    /// The membership is not one that a querier reports; nothing changes.
    pub fn set(&mut self, group: IpAddr, filter: SourceFilter) -> Result<(), InvalidMembership> {
        if group.is_ipv6() != self.v6 || !is_routable(group) {
            return Err(InvalidMembership);
        }
        match &filter {
            SourceFilter::Sources(sources) if sources.is_empty() => {
                self.groups.remove(&group);
                return Ok(());
            }
            SourceFilter::Sources(sources) => {
                let valid = sources.iter().all(|source| is_source_for(*source, group));
                if !valid || sources.len() > MAX_SOURCES {
                    return Err(InvalidMembership);
                }
            }
            SourceFilter::Any => {}
        }
        if !self.groups.contains_key(&group) && self.groups.len() == MAX_GROUPS {
            return Err(InvalidMembership);
        }
        self.added += 1;
        let added = self.added;
        self.groups.entry(group).or_insert((added, SourceFilter::Any)).1 = filter;
        Ok(())
    }

    /// Removes all groups.
    pub fn clear(&mut self) {
        self.groups.clear();
    }

    /// Returns true if there is no group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The number of items of [`Memberships::iter`].
    #[must_use]
    pub fn count(&self) -> usize {
        let counts = self.groups.values().map(|(_, filter)| match filter {
            SourceFilter::Any => 1,
            SourceFilter::Sources(sources) => sources.len(),
        });
        counts.sum()
    }

    /// Groups and their source filters, those that were added first in front.
    pub fn groups(&self) -> impl Iterator<Item = (IpAddr, &SourceFilter)> {
        let mut groups: Vec<_> = self.groups.iter().collect();
        groups.sort_unstable_by_key(|(_, (added, _))| *added);
        groups.into_iter().map(|(group, (_, filter))| (*group, filter))
    }

    /// Groups in the same order, one item for each sender; `None` is any sender.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, Option<IpAddr>)> {
        self.groups().flat_map(|(group, filter)| {
            let sources: Vec<Option<IpAddr>> = match filter {
                SourceFilter::Any => vec![None],
                SourceFilter::Sources(sources) => sources.iter().copied().map(Some).collect(),
            };
            sources.into_iter().map(move |source| (group, source))
        })
    }
}

/// Returns true for groups that routers forward: those of link-local scope are not (RFC 5771 section 4, RFC 4291 section
/// 2.7).
fn is_routable(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(v4) => v4.is_multicast() && v4.octets()[..3] != [224, 0, 0],
        IpAddr::V6(v6) => v6.is_multicast() && v6.octets()[1] & 0xf > 2,
    }
}

/// Returns true if an address can send to a group: an address of the same family that a rule accepts as a sender.
fn is_source_for(source: IpAddr, group: IpAddr) -> bool {
    source.is_ipv4() == group.is_ipv4() && !source.is_multicast() && !unreachable(source)
}

/// Robustness variable: the number of times that a message is sent of which one may be lost (RFC 3376 section 8.1).
const ROBUSTNESS: u8 = 2;

/// Time between general queries (section 8.2).
const QUERY_INTERVAL: Duration = Duration::from_secs(125);

/// Time in which hosts confirm their memberships to a querier that has just started: the query response interval (section
/// 8.3), and a second for delays of the query and the responses.
pub const STARTUP_RESPONSE_TIME: Duration = Duration::from_secs(11);

/// Time from the last report to the end of a membership (section 8.4): two query intervals and the time for a response.
pub const GROUP_MEMBERSHIP_INTERVAL: Duration = Duration::from_secs(260);

/// Time after the last query of another querier until this router becomes querier (section 8.5).
const OTHER_QUERIER_PRESENT_INTERVAL: Duration = Duration::from_secs(255);

/// Time from a leave to the end of the membership, unless another host reports it (section 8.8): two queries, one second
/// each.
const LAST_MEMBER_QUERY_TIME: Duration = Duration::from_secs(2);

/// Limit on the groups of one interface and family.
pub const MAX_GROUPS: usize = 4096;

/// Limit on the senders of one group.
pub const MAX_SOURCES: usize = 64;
