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

use accounts::{Accounts, Entry};
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
    /// Removed groups, which [`Querier::next_change`] returns before others: the supervisor, which has the same limit on
    /// groups, has room for a new group after the removal of another one.
    removed: BTreeSet<IpAddr>,
    limits: LimitCounts,
}

/// Numbers of reports that the limit on groups has concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitCounts {
    /// Reports of new groups that were ignored.
    pub ignored: u64,
    /// Groups that were removed for a group of a host with fewer groups.
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

/// Expiry times of the memberships of one group: for any sender, and for single senders. Zero means that there is no
/// such membership.
#[derive(Debug)]
struct GroupState {
    any_until: Duration,
    sources: BTreeMap<IpAddr, Duration>,
    account: Entry,
    /// [`Querier::next_change`] has returned the group, so its removal has to be reported, too.
    is_reported: bool,
}

impl GroupState {
    const fn new(account: Entry) -> Self {
        Self {
            any_until: Duration::ZERO,
            sources: BTreeMap::new(),
            account,
            is_reported: false,
        }
    }
}

/// Decision about a report of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// The group is in the table.
    Admitted,
    /// The table is full, and the host has as many groups as others.
    Ignored,
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
        // The reporter is not known. A report of the group moves it to the account of the host, unless that host has as many
        // groups.
        let accounts = &mut self.accounts;
        let unknown = match group {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let new = || GroupState::new(accounts.add(unknown, group));
        let restored = self.groups.entry(group).or_insert_with(new);
        restored.is_reported = true;
        match filter {
            SourceFilter::Any => restored.any_until = until,
            SourceFilter::Sources(sources) => {
                restored
                    .sources
                    .extend(sources.into_iter().map(|source| (source, until)));
            }
        }
    }

    /// Handles a host's report or another router's query. If the number of groups has reached its limit, a new group
    /// replaces the newest one of the host that has reported the most groups, or is ignored if its host has as many.
    /// Senders beyond the limit are ignored.
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
            let any_until = (!group.any_until.is_zero()).then_some(group.any_until);
            group.sources.values().copied().chain(any_until)
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
            Some(found) if !found.any_until.is_zero() => SourceFilter::Any,
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

    /// Returns the numbers of ignored reports and evicted groups since this function was called last.
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
        self.groups.retain(|address, group| {
            let count = group.sources.len();
            group.sources.retain(|_, until| *until > now);
            let has_any = !group.any_until.is_zero();
            if group.any_until <= now {
                group.any_until = Duration::ZERO;
            }
            let is_any = !group.any_until.is_zero();
            // Source-specific memberships do not change the filter while there is a membership for any sender.
            if is_any != has_any || (!is_any && group.sources.len() != count) {
                changed.insert(*address);
            }
            let remains = is_any || !group.sources.is_empty();
            if !remains {
                accounts.remove(group.account);
                changed.remove(address);
                if group.is_reported {
                    removed.insert(*address);
                }
            }
            remains
        });
    }

    /// Makes room for a group that a host has reported, and adds it to the table and to the account of the host.
    fn admit(&mut self, group: IpAddr, from: IpAddr) -> Admission {
        if let Some(found) = self.groups.get_mut(&group) {
            self.accounts.share(&mut found.account, from, group);
            return Admission::Admitted;
        }
        if self.groups.len() >= MAX_GROUPS {
            let Some(newest) = self.accounts.evictable_for(from) else {
                self.limits.ignored += 1;
                return Admission::Ignored;
            };
            self.limits.evicted += 1;
            self.remove(newest);
        }
        let account = self.accounts.add(from, group);
        self.groups.insert(group, GroupState::new(account));
        // If the removal of the same group is not reported yet, its new filter replaces the old one.
        if self.removed.remove(&group)
            && let Some(found) = self.groups.get_mut(&group)
        {
            found.is_reported = true;
        }
        Admission::Admitted
    }

    /// Removes a group that has not expired.
    fn remove(&mut self, group: IpAddr) {
        let Some(state) = self.groups.remove(&group) else {
            return;
        };
        self.accounts.remove(state.account);
        self.changed.remove(&group);
        self.pending_queries
            .retain(|(_, query)| query.group != Some(group));
        if state.is_reported {
            self.removed.insert(group);
        }
    }

    fn handle_record(&mut self, record: Record, from: IpAddr, now: Duration) {
        let Record { group, change } = record;
        if !is_routable(group) || group.is_ipv4() != self.address.is_ipv4() {
            return;
        }
        match change {
            SourceChange::Any => {
                if self.admit(group, from) == Admission::Ignored {
                    return;
                }
                let until = now + self.group_membership_interval();
                let Some(found) = self.groups.get_mut(&group) else {
                    return;
                };
                if found.any_until <= now {
                    self.changed.insert(group);
                }
                found.any_until = until;
                // A host has reported the membership again, so pending queries for the group are not needed.
                self.pending_queries
                    .retain(|(_, query)| query.group != Some(group));
            }
            SourceChange::Include { sources, exclusive } => {
                let adds_one = sources.iter().any(|source| is_source_for(*source, group));
                if adds_one && self.admit(group, from) == Admission::Ignored {
                    return;
                }
                self.include(group, &sources, exclusive, now);
            }
            SourceChange::Block(sources) => self.block(group, &sources, now),
        }
    }

    /// Adds senders to the memberships of a group. If `exclusive`, the host has left the group for other senders, so a
    /// group-specific query finds out whether another host is still a member.
    fn include(&mut self, group: IpAddr, sources: &[IpAddr], exclusive: bool, now: Duration) {
        let until = now + self.group_membership_interval();
        let can_schedule_query = self.can_schedule_query();
        let valid = sources.iter().filter(|source| is_source_for(**source, group));
        let Some(found) = self.groups.get_mut(&group) else {
            return;
        };
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
        if query.sources.is_empty() {
            found.any_until = found.any_until.min(until);
        }
        for source in &query.sources {
            if let Some(source_until) = found.sources.get_mut(source) {
                *source_until = (*source_until).min(until);
            }
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
            if query.sources.is_empty() && !found.any_until.is_zero() {
                found.any_until = found.any_until.max(until);
            }
            for source in &query.sources {
                if let Some(source_until) = found.sources.get_mut(source) {
                    *source_until = (*source_until).max(until);
                }
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
            && self.pending_queries.len() < MAX_GROUPS
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

/// Maximum number of groups on one interface in one address family.
pub const MAX_GROUPS: usize = 4096;

/// Maximum number of senders in the source filter of one group.
pub const MAX_SOURCES: usize = 64;
