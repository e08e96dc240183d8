//! Group memberships on an interface: the router side of IGMP (RFC 2236, RFC 3376) and MLD (RFC 2710, RFC 3810).
//!
//! One [`Querier`] for each interface and family handles reports, expires memberships and schedules queries. It runs in
//! a sandboxed process, because it reads packets of untrusted hosts. The supervisor keeps the [`Memberships`] that the
//! querier reports, and a proxy (RFC 4605) makes rules of them. Two simplifications of the RFCs may forward more than
//! hosts request, never less: a host that excludes some senders of a group receives all of them, and if one host joins
//! a group for any sender, the group is forwarded from any sender to the whole interface.
//!
//! Times are durations since a moment that the caller chooses, such as the start of the process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

mod accounts;
mod memberships;
pub mod message;
#[cfg(test)]
mod tests;

pub use memberships::{InvalidMembership, Memberships};

use accounts::{Accounts, Entry, Member};
use memberships::{is_routable, is_source_for};
use message::{Message, Query, Record, SourceChange};

/// State of the querier election and of the group memberships of one interface and address family.
#[derive(Debug)]
pub struct Querier {
    address: IpAddr,
    /// True if queries can be sent because the interface has an address of the family.
    can_send: bool,
    role: QuerierRole,
    groups: BTreeMap<IpAddr, GroupState>,
    accounts: Accounts,
    /// Group-specific and group-and-source-specific queries that have not been sent yet, each with the time at which it
    /// is due.
    pending_queries: Vec<(Duration, Query)>,
    /// Groups whose source filter has changed since [`Querier::next_change`] returned it.
    changed: BTreeSet<IpAddr>,
    /// Removed groups, which [`Querier::next_change`] returns before others: the supervisor limits the groups to as many as
    /// there may be memberships, and has room for a new group after the removal of another one.
    removed: BTreeSet<IpAddr>,
    limits: LimitCounts,
}

/// Numbers of memberships that the limit on memberships has concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitCounts {
    /// New memberships whose reports were ignored.
    pub ignored: u64,
    /// Memberships that were removed for one of a host with fewer memberships.
    pub evicted: u64,
}

/// Role of this router in the querier election (RFC 3376 section 6.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuerierRole {
    /// This router is the querier: it sends the next general query at `next`. `startup_queries` general queries of the
    /// startup (RFC 3376 section 8.7) are not sent yet.
    Querier { next: Duration, startup_queries: u8 },
    /// A router with a lower address is the querier; this router takes over if no query of it arrives before `until`.
    /// `max_response_time` is that of its last general query.
    NonQuerier {
        until: Duration,
        max_response_time: Duration,
    },
}

/// A membership for any sender of a group, or for one sender, until its expiry.
#[derive(Debug)]
struct Membership {
    until: Duration,
    account: Entry,
}

/// Memberships of one group: for any sender, and for single senders.
#[derive(Debug, Default)]
struct GroupState {
    any: Option<Membership>,
    sources: BTreeMap<IpAddr, Membership>,
    /// [`Querier::next_change`] has returned the group, so its removal has to be reported, too.
    is_reported: bool,
}

impl GroupState {
    /// Returns true if there is no membership.
    fn is_empty(&self) -> bool {
        self.any.is_none() && self.sources.is_empty()
    }

    fn get_mut(&mut self, source: Option<IpAddr>) -> Option<&mut Membership> {
        match source {
            None => self.any.as_mut(),
            Some(source) => self.sources.get_mut(&source),
        }
    }

    /// Adds a membership, or replaces it.
    fn insert(&mut self, source: Option<IpAddr>, membership: Membership) {
        match source {
            None => self.any = Some(membership),
            Some(source) => drop(self.sources.insert(source, membership)),
        }
    }

    /// Returns the memberships that a query for these senders concerns: that for any sender if there are none.
    fn queried(&mut self, sources: &[IpAddr]) -> impl Iterator<Item = &mut Membership> {
        let any = self.any.as_mut().filter(|_| sources.is_empty());
        let queried = self
            .sources
            .iter_mut()
            .filter(|(source, _)| sources.contains(source));
        queried.map(|(_, membership)| membership).chain(any)
    }

    fn remove(&mut self, source: Option<IpAddr>) -> Option<Membership> {
        match source {
            None => self.any.take(),
            Some(source) => self.sources.remove(&source),
        }
    }
}

/// The source filter of a group on an interface: the senders whose datagrams the interface's hosts have joined for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceFilter {
    /// Datagrams of any sender are forwarded.
    Any,
    /// Datagrams of these senders only (INCLUDE mode of RFC 3376); an empty list ends the membership.
    Sources(Vec<IpAddr>),
}

impl Querier {
    /// Creates a querier that sends queries from `address`, and sends the first one at once.
    #[must_use]
    pub fn new(address: IpAddr, now: Duration) -> Self {
        Self {
            address,
            can_send: true,
            role: QuerierRole::Querier {
                next: now,
                startup_queries: ROBUSTNESS,
            },
            groups: BTreeMap::new(),
            accounts: Accounts::default(),
            pending_queries: Vec::new(),
            changed: BTreeSet::new(),
            removed: BTreeSet::new(),
            limits: LimitCounts::default(),
        }
    }

    /// Changes the source address of queries. Memberships are kept, and one general query becomes due.
    pub fn set_address(&mut self, address: IpAddr, now: Duration) {
        self.address = address;
        self.role = QuerierRole::Querier {
            next: now,
            startup_queries: 1,
        };
    }

    /// Sets whether queries can be sent. While they cannot, a host's leave message does not shorten a membership.
    pub const fn set_can_send(&mut self, can_send: bool) {
        self.can_send = can_send;
    }

    /// Adds a membership that the querier's predecessor, before a restart of the process, has reported to the
    /// supervisor. It expires at `until` unless a host reports it before. It is not reported to the supervisor again.
    pub fn restore(&mut self, group: IpAddr, filter: SourceFilter, until: Duration) {
        // The reporter is not known. A report of the membership moves it to the account of the host, unless that host has as
        // many memberships.
        let unknown = match group {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let restored = self.groups.entry(group).or_default();
        restored.is_reported = true;
        let sources = match filter {
            SourceFilter::Any => vec![None],
            SourceFilter::Sources(sources) => sources.into_iter().map(Some).collect(),
        };
        for source in sources {
            match restored.get_mut(source) {
                Some(membership) => membership.until = until,
                None => {
                    let account = self.accounts.add(unknown, Member { group, source });
                    restored.insert(source, Membership { until, account });
                }
            }
        }
    }

    /// Handles a host's report or another router's query. If the number of memberships has reached its limit, a new one
    /// replaces the newest one of the host that has reported the most, or is ignored if its host has as many. Senders of a
    /// group beyond their limit are ignored.
    pub fn handle(&mut self, message: Message, now: Duration) {
        match message {
            Message::Reports { from, records } => {
                for record in records {
                    self.handle_record(record, from, now);
                }
            }
            Message::Query {
                from,
                query,
                suppress,
            } => self.handle_query(from, &query, suppress, now),
        }
    }

    /// Removes expired memberships and returns the queries to send now.
    pub fn tick(&mut self, now: Duration) -> Vec<Query> {
        self.expire(now);
        if let QuerierRole::NonQuerier { until, .. } = self.role
            && until <= now
        {
            self.role = QuerierRole::Querier {
                next: now,
                startup_queries: ROBUSTNESS,
            };
        }
        let QuerierRole::Querier {
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
            self.role = QuerierRole::Querier {
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

    /// Returns the time at which [`Querier::tick`] has to be called next.
    #[must_use]
    pub fn next_tick(&self) -> Duration {
        let role = match self.role {
            QuerierRole::Querier { next, .. } => next,
            QuerierRole::NonQuerier { until, .. } => until,
        };
        let expiry = self.groups.values().flat_map(|group| {
            let memberships = group.sources.values().chain(&group.any);
            memberships.map(|membership| membership.until)
        });
        let pending = self.pending_queries.iter().map(|(at, _)| *at);
        expiry.chain(pending).fold(role, Duration::min)
    }

    /// Returns a group whose source filter has changed, with the current filter, and removes the group from the list of
    /// changes.
    pub fn next_change(&mut self) -> Option<(IpAddr, SourceFilter)> {
        let group = self.removed.pop_first().or_else(|| self.changed.pop_first())?;
        let found = self.groups.get_mut(&group).map(|found| {
            found.is_reported = true;
            &*found
        });
        let filter = match found {
            None => SourceFilter::Sources(Vec::new()),
            Some(found) if found.any.is_some() => SourceFilter::Any,
            Some(found) => SourceFilter::Sources(found.sources.keys().copied().collect()),
        };
        Some((group, filter))
    }

    /// Adds a group to the list of changes again, because reporting its filter to the supervisor failed.
    pub fn retry_change(&mut self, group: IpAddr) {
        match self.groups.contains_key(&group) {
            true => self.changed.insert(group),
            false => self.removed.insert(group),
        };
    }

    /// Returns the numbers of ignored and evicted memberships since this function was called last.
    pub fn take_limit_counts(&mut self) -> LimitCounts {
        std::mem::take(&mut self.limits)
    }

    /// Returns true if the source filter of a group has changed, so that [`Querier::next_change`] returns a group.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        !self.changed.is_empty() || !self.removed.is_empty()
    }

    fn expire(&mut self, now: Duration) {
        let (changed, removed, accounts) = (&mut self.changed, &mut self.removed, &mut self.accounts);
        let mut has_expired = |membership: &Membership| {
            let has_expired = membership.until <= now;
            if has_expired {
                accounts.remove(membership.account);
            }
            has_expired
        };
        self.groups.retain(|address, group| {
            let count = group.sources.len();
            group.sources.retain(|_, membership| !has_expired(membership));
            let any_ends = group.any.take_if(|membership| has_expired(membership)).is_some();
            // Source-specific memberships do not change the filter while there is a membership for any sender.
            if any_ends || (group.any.is_none() && group.sources.len() != count) {
                changed.insert(*address);
            }
            if group.is_empty() {
                changed.remove(address);
                if group.is_reported {
                    removed.insert(*address);
                }
            }
            !group.is_empty()
        });
    }

    /// Renews a membership that a host has reported until `until`, or adds it if there is room for it.
    fn admit(&mut self, member: Member, from: IpAddr, until: Duration) {
        let Member { group, source } = member;
        let found = self.groups.get_mut(&group);
        if let Some(membership) = found.and_then(|found| found.get_mut(source)) {
            membership.until = until;
            return self.accounts.share(&mut membership.account, from, member);
        }
        let count = self.groups.get(&group).map_or(0, |found| found.sources.len());
        if source.is_some() && count >= MAX_SOURCES {
            return;
        }
        if self.accounts.total() >= MAX_MEMBERSHIPS {
            let Some(newest) = self.accounts.evictable_for(from) else {
                self.limits.ignored += 1;
                return;
            };
            self.limits.evicted += 1;
            self.evict(newest);
        }
        let account = self.accounts.add(from, member);
        // If the removal of the same group is not reported yet, its new filter replaces the old one.
        let is_reported = self.removed.remove(&group);
        let found = self.groups.entry(group).or_default();
        found.is_reported |= is_reported;
        if found.any.is_none() {
            self.changed.insert(group);
        }
        found.insert(source, Membership { until, account });
    }

    /// Removes a membership that has not expired, and its group with the last one.
    fn evict(&mut self, Member { group, source }: Member) {
        let Some(state) = self.groups.get_mut(&group) else {
            return;
        };
        if let Some(membership) = state.remove(source) {
            self.accounts.remove(membership.account);
        }
        if !state.is_empty() {
            if source.is_none() || state.any.is_none() {
                self.changed.insert(group);
            }
            return;
        }
        if state.is_reported {
            self.removed.insert(group);
        }
        self.groups.remove(&group);
        self.changed.remove(&group);
        self.pending_queries
            .retain(|(_, query)| query.group != Some(group));
    }

    fn handle_record(&mut self, record: Record, from: IpAddr, now: Duration) {
        let Record { group, change } = record;
        if !is_routable(group) || group.is_ipv4() != self.address.is_ipv4() {
            return;
        }
        match change {
            SourceChange::Any => {
                let until = now + self.group_membership_interval();
                self.admit(Member { group, source: None }, from, until);
                // A host has reported the membership again, so pending queries for the group are not needed.
                self.pending_queries
                    .retain(|(_, query)| query.group != Some(group));
            }
            SourceChange::Include { sources, exclusive } => {
                self.include(group, &sources, exclusive, from, now);
            }
            SourceChange::Block(sources) => self.block(group, &sources, now),
        }
    }

    /// Adds senders to the memberships of a group. If `exclusive`, the host has left the group for other senders, so a
    /// group-specific query finds out whether another host is still a member.
    fn include(&mut self, group: IpAddr, sources: &[IpAddr], exclusive: bool, from: IpAddr, now: Duration) {
        let until = now + self.group_membership_interval();
        let can_schedule_query = self.can_schedule_query();
        for source in sources.iter().filter(|source| is_source_for(**source, group)) {
            let source = Some(*source);
            self.admit(Member { group, source }, from, until);
        }
        let last_member_until = now + LAST_MEMBER_QUERY_TIME;
        let any = self.groups.get_mut(&group).and_then(|found| found.any.as_mut());
        let any = any.filter(|any| exclusive && can_schedule_query && any.until > last_member_until);
        if let Some(any) = any {
            any.until = last_member_until;
            self.schedule_query(Query::group(group), now);
        }
    }

    /// Schedules a query for the senders that a host has blocked, to find out whether another host is still a member
    /// for them.
    fn block(&mut self, group: IpAddr, sources: &[IpAddr], now: Duration) {
        let can_schedule_query = self.can_schedule_query();
        let Some(found) = self.groups.get_mut(&group).filter(|_| can_schedule_query) else {
            return;
        };
        let last_member_until = now + LAST_MEMBER_QUERY_TIME;
        let mut queried = Vec::new();
        for source in sources {
            let membership = found.sources.get_mut(source);
            if let Some(membership) = membership.filter(|membership| membership.until > last_member_until) {
                membership.until = last_member_until;
                queried.push(*source);
            }
        }
        if !queried.is_empty() {
            self.schedule_query(Query::sources(group, queried), now);
        }
    }

    /// Handles a query of another router.
    ///
    /// The router with the lowest address is the querier (RFC 3376 section 6.6.2, RFC 3810 section 7.6.2). A router that is
    /// not lowers the timers of the group or the senders that the querier queries, unless the query's S flag is set, to the
    /// last member query time: the number of queries times the maximum response time of the query (RFC 2236 section 3, RFC
    /// 3376 section 6.6.1, RFC 3810 section 7.6.1).
    ///
    /// Any host of the link can send queries, so their effect has limits that the RFCs do not have:
    ///
    /// - Only a general query ends the role of querier, because every host receives and answers it. A query for a group
    ///   reaches the members of the group only, which may be none.
    /// - A general query with a maximum response time of at least [`QUERY_INTERVAL`] is ignored. RFC 3376 section 8.3 requires
    ///   less of the querier; hosts could respond after this router has removed their memberships.
    /// - Timers are not lowered to less than [`LAST_MEMBER_QUERY_TIME`], within which the hosts' responses arrive, however
    ///   short the maximum response time is. A long one, up to 53 minutes in IGMP and 140 minutes in MLD, prolongs no timer.
    fn handle_query(&mut self, from: IpAddr, query: &Query, suppress: bool, now: Duration) {
        // A source address of the other family, in a forged frame, is ignored in the election.
        if from.is_unspecified() || from.is_ipv4() != self.address.is_ipv4() || from >= self.address {
            return;
        }
        let Some(group) = query.group else {
            if query.max_response_time < QUERY_INTERVAL {
                let was_querier = matches!(self.role, QuerierRole::Querier { .. });
                self.role = QuerierRole::NonQuerier {
                    until: now + OTHER_QUERIER_PRESENT_INTERVAL,
                    max_response_time: query.max_response_time,
                };
                if was_querier {
                    self.cancel_queries(now);
                }
            }
            return;
        };
        let Some(found) = self.groups.get_mut(&group).filter(|_| !suppress) else {
            return;
        };
        let response_time = query.max_response_time * ROBUSTNESS.into();
        let until = now + response_time.max(LAST_MEMBER_QUERY_TIME);
        for membership in found.queried(&query.sources) {
            membership.until = membership.until.min(until);
        }
    }

    /// Cancels the queries that are scheduled, because another router has become the querier, and keeps the memberships that
    /// they were to confirm: hosts that have not received the query do not respond before the shortened timers expire.
    fn cancel_queries(&mut self, now: Duration) {
        let until = now + self.group_membership_interval();
        for (_, query) in std::mem::take(&mut self.pending_queries) {
            let Some(found) = query.group.and_then(|group| self.groups.get_mut(&group)) else {
                continue;
            };
            for membership in found.queried(&query.sources) {
                membership.until = membership.until.max(until);
            }
        }
    }

    /// Returns the time from a report to the expiry of the membership. If another router is the querier, it is the time in
    /// which that router may be silent before this one sends queries, and the time in which hosts respond to either, so that
    /// no membership in use expires before (RFC 3376 section 8.4: two query intervals and the query response interval). It
    /// is 380 seconds at most.
    fn group_membership_interval(&self) -> Duration {
        match self.role {
            QuerierRole::Querier { .. } => GROUP_MEMBERSHIP_INTERVAL,
            QuerierRole::NonQuerier {
                max_response_time, ..
            } => {
                let response_time = (max_response_time + RESPONSE_DELAY).max(STARTUP_RESPONSE_TIME);
                OTHER_QUERIER_PRESENT_INTERVAL + response_time
            }
        }
    }

    /// Returns true if this router can send a query now. If it cannot, a leave message does not shorten a membership,
    /// because the group's other hosts would not be queried: a non-querier shortens it when the querier's query arrives
    /// (RFC 3376 section 6.6.1).
    fn can_schedule_query(&self) -> bool {
        matches!(self.role, QuerierRole::Querier { .. })
            && self.can_send
            && self.pending_queries.len() < MAX_MEMBERSHIPS
    }

    /// Schedules a query for now, and a repetition after one second. The caller has checked
    /// [`Querier::can_schedule_query`].
    fn schedule_query(&mut self, query: Query, now: Duration) {
        self.pending_queries.push((now, query.clone()));
        self.pending_queries
            .push((now + LAST_MEMBER_QUERY_TIME / 2, query));
    }
}

/// Robustness variable: number of times that a message is sent because some may be lost (RFC 3376 section 8.1).
const ROBUSTNESS: u8 = 2;

/// Query interval: time between general queries (RFC 3376 section 8.2).
const QUERY_INTERVAL: Duration = Duration::from_secs(125);

/// Time within which hosts report their memberships to a querier that has just started: the query response interval of
/// 10 s (RFC 3376 section 8.3), and 1 s for delays of the query and the reports.
pub const STARTUP_RESPONSE_TIME: Duration = Duration::from_secs(11);

/// Time for delays of a query and the reports, in addition to the maximum response time.
const RESPONSE_DELAY: Duration = Duration::from_secs(1);

/// Group membership interval: time from the last report to the expiry of a membership (RFC 3376 section 8.4), which is
/// two query intervals and the query response interval, while this router is the querier.
pub const GROUP_MEMBERSHIP_INTERVAL: Duration = Duration::from_secs(260);

/// Other querier present interval: time after the last query of another querier until this router becomes querier (RFC
/// 3376 section 8.5).
const OTHER_QUERIER_PRESENT_INTERVAL: Duration = Duration::from_secs(255);

/// Last member query time: time from a leave to the expiry of the membership, unless another host reports it (RFC 3376
/// section 8.8). It is the time for two queries, one second each.
const LAST_MEMBER_QUERY_TIME: Duration = Duration::from_secs(2);

/// Maximum number of memberships on one interface in one address family, each for any sender or for one sender of a group.
/// There are at most as many groups.
pub const MAX_MEMBERSHIPS: usize = 4096;

/// Maximum number of senders in the source filter of one group.
pub const MAX_SOURCES: usize = 64;
