//! IGMP/MLD queriers of `--proxy`: opens their packet sockets, and makes rules of the memberships that they report.
//!
//! The supervisor reads nothing from the sockets. A sandboxed worker does, parses what arrives, sends queries, and reports
//! the source filter of each group. A compromised worker can report memberships that no host has, but only of routable groups
//! and of as many as a host could report (see [`Memberships`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use pontoon_relay::Rule;
use pontoon_relay::counters::WorkerStats;
use pontoon_relay::membership::Memberships;
use pontoon_relay::proxy::{Member, Proxy};
use pontoon_relay_worker::messages::{self, Message};
use pontoon_sys::{Family, filter, packet};
use rustix::event::PollFd;

use super::counter_rows;
use super::links::{Link, Links};
use super::worker_pool::{SpawnConfig, Task, WorkerPool};
use crate::error::Error;

/// All proxies, and the worker that runs their queriers.
#[derive(Debug)]
pub(super) struct Proxies {
    proxies: Vec<ProxyState>,
    /// One worker, or none without proxies.
    workers: WorkerPool,
    next_id: u32,
}

#[derive(Debug)]
struct ProxyState {
    proxy: Proxy,
    /// By downstream interface and whether the family is IPv6.
    queriers: BTreeMap<(String, bool), Querier>,
    /// Interfaces that do not exist, for which a warning has been logged.
    missing: BTreeSet<String>,
}

/// A querier that the worker runs.
#[derive(Debug)]
struct Querier {
    id: u32,
    /// Index of the interface.
    interface: u32,
    /// Source address of queries, or the last one if the interface has none now.
    address: IpAddr,
    has_address: bool,
    /// The worker has a duplicate. This one is for its successor.
    socket: OwnedFd,
    memberships: Memberships,
}

/// Number of the only worker.
const WORKER: usize = 0;

impl Proxies {
    /// Merges proxies that have the same upstream interface, as they would make rules with the same input, and starts the
    /// worker.
    ///
    /// # Errors
    /// The worker could not be started.
    pub(super) fn new(proxies: &[Proxy], spawn_config: SpawnConfig) -> Result<Self, Error> {
        let state = |proxy| ProxyState {
            proxy,
            queriers: BTreeMap::new(),
            missing: BTreeSet::new(),
        };
        let workers = u8::from(!proxies.is_empty());
        Ok(Self {
            proxies: Proxy::merge(proxies).into_iter().map(state).collect(),
            workers: WorkerPool::new(Task::Query, workers, spawn_config)?,
            next_id: 0,
        })
    }

    /// Opens and closes queriers according to the state of the interfaces.
    pub(super) fn update(&mut self, links: &Links) {
        for state in &mut self.proxies {
            state.update(links, &mut self.workers, &mut self.next_id);
        }
    }

    /// Returns the descriptors to poll.
    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.workers.poll_fds()
    }

    /// Returns the time at which [`Proxies::manage_worker`] is due even if no descriptor is ready.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.workers.next_deadline()
    }

    /// Takes in the memberships that the worker has reported, and restarts the worker if it has exited.
    pub(super) fn manage_worker(&mut self) {
        self.workers.flush();
        self.workers.reap();
        for member in self.workers.members() {
            // The querier may have been removed while the report was in the socket's buffer.
            let querier = self.queriers_mut().find(|querier| querier.id == member.querier);
            let result = querier.map(|querier| querier.memberships.set(member.group, member.filter));
            if let Some(Err(error)) = result {
                self.workers.kill(WORKER, &error.to_string());
                break;
            }
        }
        for number in self.workers.start_due() {
            for querier in self.proxies.iter().flat_map(|state| state.queriers.values()) {
                querier.start(number, &mut self.workers);
            }
        }
    }

    /// Returns process id, restarts and totals of the worker.
    pub(super) fn stats(&self) -> Option<WorkerStats> {
        self.workers.stats().pop()
    }

    /// Returns the rules that follow from the memberships and need at most so many rows of counters, and the number of
    /// memberships that are left out for lack of rows.
    pub(super) fn rules(&self, rows: usize) -> (Vec<Rule>, usize) {
        // The longest list of memberships is cut first, so that an interface with many does not take the rows of others.
        let mut limit = usize::MAX;
        loop {
            let (rules, longest, left_out) = self.rules_within(limit);
            if limit == 0 || counter_rows::needed(&rules) <= rows {
                return (rules, left_out);
            }
            limit = longest.min(limit) / 2;
        }
    }

    /// Returns the rules that follow from the first `limit` memberships of each querier, the length of the longest list of
    /// memberships, and the number of memberships beyond the limit.
    fn rules_within(&self, limit: usize) -> (Vec<Rule>, usize, usize) {
        let (mut rules, mut longest, mut left_out) = (Vec::new(), 0, 0);
        for ProxyState { proxy, queriers, .. } in &self.proxies {
            let mut members = Vec::new();
            for ((interface, _), querier) in queriers {
                let memberships: Vec<_> = querier.memberships.iter().collect();
                longest = longest.max(memberships.len());
                left_out += memberships.len().saturating_sub(limit);
                let within = memberships.into_iter().take(limit);
                members.extend(within.map(|(group, source)| Member {
                    interface: interface.clone(),
                    group,
                    source,
                }));
            }
            rules.extend(proxy.rules(&members));
        }
        (rules, longest, left_out)
    }

    fn queriers_mut(&mut self) -> impl Iterator<Item = &mut Querier> {
        self.proxies
            .iter_mut()
            .flat_map(|state| state.queriers.values_mut())
    }
}

impl ProxyState {
    fn update(&mut self, links: &Links, workers: &mut WorkerPool, next_id: &mut u32) {
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
                    workers.send(WORKER, &Message::RemoveQuerier(querier.id), None);
                }
                let (Some(link), Some(address)) = (link, address) else {
                    continue;
                };
                *next_id += 1;
                match Querier::open(*next_id, link.index, address) {
                    Ok(querier) => {
                        querier.start(WORKER, workers);
                        self.queriers.insert(key, querier);
                    }
                    Err(error) => tracing::warn!(%error, "{name}: cannot receive membership reports"),
                }
            }
        }
    }
}

/// Returns the source address of queries. Those of MLD come from the link-local address (RFC 3810 section 5).
fn query_address(link: &Link, family: Family) -> Option<IpAddr> {
    let mut addresses = link.addresses(family).map(|local| local.address);
    addresses.find(|address| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    })
}

impl Querier {
    /// Opens a packet socket that receives the IGMP or MLD messages of an interface.
    fn open(id: u32, interface: u32, address: IpAddr) -> io::Result<Self> {
        let family = Family::of(address);
        let socket = packet::open_without_ring(interface, family, |socket| match family {
            Family::V4 => filter::attach(socket, IGMP),
            Family::V6 => filter::attach(socket, MLD),
        })?;
        packet::all_groups(&socket, interface, true)?;
        Ok(Self {
            id,
            interface,
            address,
            has_address: true,
            socket,
            memberships: Memberships::new(address.is_ipv6()),
        })
    }

    /// Sends the querier to the worker, with the memberships that a predecessor of the worker has reported. The worker's
    /// first step is a general query, so the hosts confirm them or they expire.
    fn start(&self, number: usize, workers: &mut WorkerPool) {
        let querier = messages::Querier {
            id: self.id,
            interface: self.interface,
            address: self.address,
        };
        // Before the socket: a worker that received reports first would report memberships that these would then change.
        for (group, filter) in self.memberships.groups() {
            let member = messages::Member {
                querier: self.id,
                group,
                filter: filter.clone(),
            };
            workers.send(number, &Message::Member(member), None);
        }
        workers.send(number, &Message::Querier(querier), Some(self.socket.as_fd()));
        if !self.has_address {
            workers.send(number, &Message::QuerierAddress(self.id, None), None);
        }
    }

    /// Changes the source address of queries. Memberships are kept, as the hosts have not changed.
    fn set_address(&mut self, address: Option<IpAddr>, workers: &mut WorkerPool) {
        if address == self.has_address.then_some(self.address) {
            return;
        }
        self.has_address = address.is_some();
        self.address = address.unwrap_or(self.address);
        workers.send(WORKER, &Message::QuerierAddress(self.id, address), None);
    }
}

/// Filter for IGMP: IP protocol 2.
const IGMP: [(u16, u8, u8, u32); 4] = [
    (0x30, 0, 0, 9),
    (0x15, 0, 1, 2),
    (0x06, 0, 0, 0x4_0000),
    (0x06, 0, 0, 0),
];

/// Filter for MLD: hop-by-hop options, and ICMPv6 behind them.
const MLD: [(u16, u8, u8, u32); 6] = [
    (0x30, 0, 0, 6),
    (0x15, 0, 3, 0),
    (0x30, 0, 0, 40),
    (0x15, 0, 1, 58),
    (0x06, 0, 0, 0x4_0000),
    (0x06, 0, 0, 0),
];

#[cfg(test)]
mod tests;
