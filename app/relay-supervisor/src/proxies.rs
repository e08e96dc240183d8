//! IGMP/MLD queriers of `--proxy`: the supervisor opens their packet sockets, and makes rules of the memberships that they
//! report.
//!
//! The supervisor reads no packet from the sockets. A sandboxed worker receives and parses the messages, sends queries, and
//! reports the source filter of each group. A compromised worker can report memberships that no host has, but only of
//! routable groups and only as many as a host could report (see [`Memberships`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pontoon_process::error::Error;
use pontoon_relay::Rule;
use pontoon_relay::counters::WorkerStats;
use pontoon_relay::filter::membership::{igmp, mld};
use pontoon_relay::filter::only_own;
use pontoon_relay::membership::{GROUP_MEMBERSHIP_INTERVAL, Memberships, STARTUP_RESPONSE_TIME};
use pontoon_relay::proxy::{Member, Proxy};
use pontoon_relay_worker::messages::{self, QuerierConfig, RelayUpdate};
use pontoon_sys::{Family, filter, packet};
use rustix::event::PollFd;

use crate::RETRY;
use crate::counter_rows;
use crate::inputs::instructions;
use crate::links::{Link, Links};
use crate::worker_pool::{SpawnConfig, Task, WorkerPool};

/// IGMP/MLD proxies of a relay, and the worker that runs their queriers.
#[derive(Debug)]
pub(super) struct Proxies {
    proxies: Vec<ProxyState>,
    /// Pool of one worker, or of none without proxies.
    workers: WorkerPool,
    next_id: u32,
    /// True if memberships have changed since [`Proxies::take_changed`] was called.
    changed: bool,
    /// Time of the next attempt to open the queriers that could not be opened.
    retry_at: Option<Instant>,
    /// Delay before the next attempt.
    retry_delay: Duration,
}

/// State of one IGMP/MLD proxy: its queriers, and the warnings that have been logged.
#[derive(Debug)]
struct ProxyState {
    proxy: Proxy,
    /// Queriers by downstream interface and by whether the family is IPv6.
    queriers: BTreeMap<(String, bool), ProxyQuerier>,
    /// Names of interfaces that do not exist, for which a warning has been logged.
    missing: BTreeSet<String>,
    /// Keys of queriers that could not be opened, for which a warning has been logged.
    failed: BTreeSet<(String, bool)>,
}

/// Querier of one interface and family, which the worker runs.
#[derive(Debug)]
struct ProxyQuerier {
    id: u32,
    /// Index of the downstream interface.
    interface: u32,
    /// Source address of queries, or the last one if the interface has none now.
    address: IpAddr,
    has_address: bool,
    /// Packet socket of the querier; the worker has a duplicate, and this one is for the worker's successor.
    socket: Arc<OwnedFd>,
    memberships: Memberships,
    /// Deadlines of unconfirmed memberships, from the exit of a worker until a successor has run for long enough to expire
    /// the memberships that no host has confirmed.
    unconfirmed: Option<Unconfirmed>,
}

/// Deadlines of the memberships that the first of several exited workers had reported. Workers report changes of
/// memberships, but not that a host has confirmed one.
#[derive(Clone, Copy, Debug)]
struct Unconfirmed {
    /// Time at which the memberships end: [`GROUP_MEMBERSHIP_INTERVAL`] after the exit of the first worker. Successors that
    /// exit before hosts can confirm the memberships do not extend it.
    until: Instant,
    /// Time at which the current worker, if there is one, expires the memberships that no host has confirmed to it.
    expiry: Option<Instant>,
}

/// Maximum delay between two attempts to open a querier.
const MAX_RETRY: Duration = Duration::from_secs(60);

/// Index of the only worker of the pool.
const WORKER: usize = 0;

impl Proxies {
    /// Merges proxies that have the same upstream interface, because they would make rules with the same input, and starts
    /// the worker.
    ///
    /// # Errors
    /// The worker could not be started.
    pub(super) fn new(proxies: &[Proxy], spawn_config: SpawnConfig) -> Result<Self, Error> {
        let state = |proxy| ProxyState {
            proxy,
            queriers: BTreeMap::new(),
            missing: BTreeSet::new(),
            failed: BTreeSet::new(),
        };
        let workers = u8::from(!proxies.is_empty());
        let proxies = Proxy::merge(proxies);
        // Each downstream interface has one querier for each family.
        let queriers = proxies.iter().map(|proxy| 2 * proxy.downstream.len()).sum();
        Ok(Self {
            proxies: proxies.into_iter().map(state).collect(),
            workers: WorkerPool::new(Task::Query { queriers }, workers, spawn_config)?,
            next_id: 0,
            changed: false,
            retry_at: None,
            retry_delay: Duration::ZERO,
        })
    }

    /// Opens and closes queriers according to the state of the interfaces. A querier that could not be opened is retried
    /// with exponential back-off, because no event reports that memory or descriptors are available again.
    pub(super) fn update(&mut self, links: &Links, now: Instant) {
        for state in &mut self.proxies {
            let removal = state.update(links, &mut self.workers, &mut self.next_id, now);
            self.changed |= removal == Removal::Memberships;
        }
        if self.proxies.iter().all(|state| state.failed.is_empty()) {
            (self.retry_at, self.retry_delay) = (None, Duration::ZERO);
        } else if self.retry_at.is_none_or(|retry_at| retry_at <= now) {
            self.retry_delay = (2 * self.retry_delay).clamp(RETRY, MAX_RETRY);
            self.retry_at = Some(now + self.retry_delay);
        }
    }

    /// Tries again to open queriers that could not be opened, if the retry is due.
    pub(super) fn retry(&mut self, links: &Links, now: Instant) {
        if self.retry_at.is_some_and(|retry_at| retry_at <= now) {
            self.update(links, now);
        }
    }

    /// Returns the time of the next [`Proxies::retry`], if a querier could not be opened.
    pub(super) fn retry_deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Returns true if memberships have changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Returns the descriptors of the worker to poll.
    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.workers.poll_fds()
    }

    /// Returns the time at which [`Proxies::manage_worker`] is due even if no descriptor is ready.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.workers.next_deadline()
    }

    /// Applies the memberships that the worker has reported, and restarts the worker if it has exited.
    pub(super) fn manage_worker(&mut self, now: Instant) {
        self.workers.flush();
        if self.workers.reap() > 0 {
            self.queriers_mut()
                .for_each(|querier| querier.on_worker_exit(now));
        }
        for member in self.workers.members() {
            self.changed = true;
            // The querier may have been removed while the report was in the socket's buffer.
            let querier = self.queriers_mut().find(|querier| querier.id == member.querier);
            let result = querier.map(|querier| querier.memberships.set(member.group, member.filter));
            if let Some(Err(error)) = result {
                self.workers.kill(WORKER, &error.to_string());
                break;
            }
        }
        self.expire(now);
        for number in self.workers.start_due() {
            self.restore_worker(number, now);
        }
    }

    /// Removes memberships that could not be confirmed in time, because no worker has run for long enough.
    fn expire(&mut self, now: Instant) {
        for state in &mut self.proxies {
            for querier in state.queriers.values_mut() {
                let removal = querier.expire(now);
                self.changed |= removal == Removal::Memberships;
            }
        }
    }

    /// Sends all queriers to the worker, whose process has just been started.
    fn restore_worker(&mut self, number: usize, now: Instant) {
        for querier in self
            .proxies
            .iter_mut()
            .flat_map(|state| state.queriers.values_mut())
        {
            querier.start(number, &mut self.workers, now);
        }
    }

    /// Returns the process id and the number of restarts of the queriers' worker, and the totals of its counters.
    pub(super) fn stats(&self) -> Option<WorkerStats> {
        self.workers.stats().pop()
    }

    /// Returns the rules that are derived from the memberships and need at most `rows` rows of counters, and the number of
    /// memberships that are left out for lack of rows.
    pub(super) fn rules(&self, rows: usize) -> (Vec<Rule>, usize) {
        // All queriers have the same limit, so that an interface with many memberships does not take the rows of others.
        self.rules_within(self.limit(rows))
    }

    /// Returns the largest number of memberships of each querier whose rules need at most `rows` rows of counters. It
    /// counts the rules and outputs, so that the rules are built only once; [`counter_rows::needed`] of the rules is the
    /// same sum.
    ///
    /// Hosts determine the number of memberships, so no more are examined than there can be rows for.
    fn limit(&self, rows: usize) -> usize {
        let queriers = self.proxies.iter().flat_map(|state| state.queriers.values());
        let counts = queriers.map(|querier| querier.memberships.count()).collect();
        // Each membership needs a row, so one more exceeds them.
        let most = greatest_share(counts, rows).saturating_add(1);
        // Number of rows that the memberships at each position of their lists add.
        let mut added = Vec::new();
        for ProxyState { queriers, .. } in &self.proxies {
            let mut members = Vec::new();
            for (interface, querier) in queriers.values().enumerate() {
                let first = querier.memberships.iter().take(most).enumerate();
                members.extend(first.map(|(position, (group, source))| ListedMember {
                    group,
                    source,
                    interface,
                    position,
                }));
            }
            members.sort_unstable();
            for of_group in members.chunk_by(|a, b| a.group == b.group) {
                let any_source = of_group.partition_point(|member| member.source.is_none());
                let any_source = &of_group[..any_source];
                for of_rule in of_group.chunk_by(|a, b| a.source == b.source) {
                    count_rows(of_rule, any_source, &mut added);
                }
            }
        }
        let mut total = 0;
        let exceeds = |count: &usize| {
            total += count;
            total > rows
        };
        added.iter().position(exceeds).unwrap_or(usize::MAX)
    }

    /// Returns the rules that are derived from the first `limit` memberships of each querier, and the number of memberships
    /// beyond the limit.
    fn rules_within(&self, limit: usize) -> (Vec<Rule>, usize) {
        let (mut rules, mut left_out) = (Vec::new(), 0);
        for ProxyState { proxy, queriers, .. } in &self.proxies {
            let mut members = Vec::new();
            for ((interface, _), querier) in queriers {
                left_out += querier.memberships.count().saturating_sub(limit);
                let within = querier.memberships.iter().take(limit);
                members.extend(within.map(|(group, source)| Member {
                    interface: interface.clone(),
                    group,
                    source,
                }));
            }
            rules.extend(proxy.rules(&members));
        }
        (rules, left_out)
    }

    fn queriers_mut(&mut self) -> impl Iterator<Item = &mut ProxyQuerier> {
        self.proxies
            .iter_mut()
            .flat_map(|state| state.queriers.values_mut())
    }
}

/// Membership with the index of its querier and its position in that querier's list. Memberships of a group are sorted by
/// sender, with "any sender" first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ListedMember {
    group: IpAddr,
    source: Option<IpAddr>,
    interface: usize,
    position: usize,
}

/// Returns the largest limit on the length of each list with which all lists together have at most `total` items;
/// `usize::MAX` if they have no more without a limit.
fn greatest_share(mut counts: Vec<usize>, total: usize) -> usize {
    counts.sort_unstable();
    let mut left = total;
    for (index, count) in counts.iter().enumerate() {
        // The part that shorter lists do not need is left for the longer ones.
        let share = left / (counts.len() - index);
        if *count > share {
            return share;
        }
        left -= count;
    }
    usize::MAX
}

/// Adds the rows of a rule and of its outputs to the positions from which on they are needed. The outputs of the group's
/// rule for any sender are outputs of this rule, too ([`Proxy::rules`]).
fn count_rows(of_rule: &[ListedMember], any_source: &[ListedMember], added: &mut Vec<usize>) {
    let first = of_rule.iter().map(|member| member.position).min();
    let first = first.unwrap_or_default();
    let mut add = |position: usize, rows| {
        if added.len() <= position {
            added.resize(position + 1, 0);
        }
        added[position] += rows;
    };
    add(first, counter_rows::OF_RULE);
    let of_interface = |members: &[ListedMember], interface| {
        let found = members.iter().find(|member| member.interface == interface);
        found.map(|member| member.position)
    };
    for member in of_rule {
        let any_source = of_interface(any_source, member.interface).map(|position| position.max(first));
        add(
            any_source.map_or(member.position, |position| position.min(member.position)),
            1,
        );
    }
    for member in any_source {
        if of_interface(of_rule, member.interface).is_none() {
            add(member.position.max(first), 1);
        }
    }
}

impl ProxyState {
    /// Opens and closes queriers, whose memberships are removed with them.
    fn update(
        &mut self,
        links: &Links,
        workers: &mut WorkerPool,
        next_id: &mut u32,
        now: Instant,
    ) -> Removal {
        let mut removal = Removal::Nothing;
        for name in self.proxy.downstream.iter().chain([&self.proxy.upstream]) {
            if links.get(name).is_some() {
                self.missing.remove(name);
            } else if self.missing.insert(name.clone()) {
                tracing::warn!("{name}: no such interface; the proxy waits for it");
            }
        }
        for name in &self.proxy.downstream {
            for family in [Family::V4, Family::V6] {
                let key = (name.clone(), family == Family::V6);
                let link = links.get(name).filter(|link| link.up);
                let address = link.and_then(|link| query_address(link, family));
                if let Some(querier) = self.queriers.get_mut(&key)
                    && link.is_some_and(|link| link.index == querier.interface)
                {
                    querier.set_address(address, workers);
                    continue;
                }
                if let Some(querier) = self.queriers.remove(&key) {
                    removal = Removal::Memberships;
                    workers.send(WORKER, RelayUpdate::RemoveQuerier(querier.id));
                }
                let (Some(link), Some(address)) = (link, address) else {
                    self.failed.remove(&key);
                    continue;
                };
                *next_id += 1;
                match ProxyQuerier::open(*next_id, link.index, address) {
                    Ok(mut querier) => {
                        querier.start(WORKER, workers, now);
                        self.failed.remove(&key);
                        self.queriers.insert(key, querier);
                    }
                    Err(error) => {
                        if self.failed.insert(key) {
                            tracing::warn!(%error, "{name}: cannot receive membership reports; retrying");
                        }
                    }
                }
            }
        }
        removal
    }
}

/// Consequence of a change of the queriers for the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    /// Memberships were removed: the derived rules have to be updated.
    Memberships,
    Nothing,
}

/// Returns the source address of queries. MLD queries have the link-local address (RFC 3810 section 5).
fn query_address(link: &Link, family: Family) -> Option<IpAddr> {
    let mut addresses = link.addresses(family).map(|local| local.address);
    addresses.find(|address| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    })
}

impl ProxyQuerier {
    /// Opens a packet socket that receives the IGMP or MLD messages of an interface.
    fn open(id: u32, interface: u32, address: IpAddr) -> io::Result<Self> {
        let family = Family::of(address);
        let socket = packet::open_without_ring(interface, family, |socket| match family {
            Family::V4 => filter::attach(socket, instructions(&only_own(interface, igmp()))),
            Family::V6 => filter::attach(socket, instructions(&only_own(interface, mld()))),
        })?;
        packet::all_groups(&socket, interface, true)?;
        Ok(Self {
            id,
            interface,
            address,
            has_address: true,
            socket: Arc::new(socket),
            memberships: Memberships::new(address.is_ipv6()),
            unconfirmed: None,
        })
    }

    /// Records the exit of the worker, after which no host confirms memberships.
    fn on_worker_exit(&mut self, now: Instant) {
        let pending = self.unconfirmed.filter(|unconfirmed| {
            // A worker that has run past this time has reported the end of the memberships that no host confirmed.
            unconfirmed.expiry.is_none_or(|expiry| now < expiry)
        });
        self.unconfirmed = Some(Unconfirmed {
            until: pending.map_or(now + GROUP_MEMBERSHIP_INTERVAL, |unconfirmed| unconfirmed.until),
            expiry: None,
        });
    }

    /// Removes all memberships if no worker runs and the time in which hosts could confirm them has passed.
    fn expire(&mut self, now: Instant) -> Removal {
        let has_expired =
            |unconfirmed: &mut Unconfirmed| unconfirmed.expiry.is_none() && unconfirmed.until <= now;
        let expired = self.unconfirmed.take_if(has_expired);
        if expired.is_none() || self.memberships.is_empty() {
            return Removal::Nothing;
        }
        self.memberships.clear();
        Removal::Memberships
    }

    /// Sends the querier to the worker, with the memberships that a predecessor of the worker has reported. The worker
    /// first sends a general query, so that hosts confirm the memberships or they expire.
    fn start(&mut self, number: usize, workers: &mut WorkerPool, now: Instant) {
        let querier = QuerierConfig {
            id: self.id,
            interface: self.interface,
            address: self.address,
            restored_for: self.restored_for(now),
        };
        // Memberships are sent before the socket: a worker that received reports of hosts first would report memberships
        // that the older ones would then change.
        for (group, filter) in self.memberships.groups() {
            let member = messages::Member {
                querier: self.id,
                group,
                filter: filter.clone(),
            };
            workers.send(number, RelayUpdate::Member(member));
        }
        let socket = Arc::clone(&self.socket).into();
        workers.send(number, RelayUpdate::Querier(querier, socket));
        if !self.has_address {
            workers.send(number, RelayUpdate::QuerierAddress(self.id, None));
        }
    }

    /// Returns the interval after which the worker that starts now expires the memberships that no host confirms: the
    /// remaining time of the first worker's, but long enough for the hosts to respond, so that memberships in use are not
    /// interrupted.
    fn restored_for(&mut self, now: Instant) -> Duration {
        let Some(unconfirmed) = &mut self.unconfirmed else {
            return GROUP_MEMBERSHIP_INTERVAL;
        };
        let left = unconfirmed.until.saturating_duration_since(now);
        let left = left.max(STARTUP_RESPONSE_TIME);
        unconfirmed.expiry = Some(now + left);
        left
    }

    /// Changes the source address of queries. Memberships are kept, because the hosts have not changed.
    fn set_address(&mut self, address: Option<IpAddr>, workers: &mut WorkerPool) {
        if address == self.has_address.then_some(self.address) {
            return;
        }
        self.has_address = address.is_some();
        self.address = address.unwrap_or(self.address);
        workers.send(WORKER, RelayUpdate::QuerierAddress(self.id, address));
    }
}

#[cfg(test)]
mod tests;
