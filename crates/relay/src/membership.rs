//! Who wants which group on an interface: the router's side of IGMP (RFC 2236, RFC 3376) and MLD (RFC 2710, RFC 3810).
//!
//! One [`Querier`] for each interface and family hears what hosts say, forgets them when they no longer do, and says when
//! to ask. From what it knows a proxy (RFC 4605) makes rules. Two simplifications, both to the hosts' advantage: who
//! wants a group from everybody but some gets it from everybody, and one who wants it from everybody is asked for alone,
//! whatever others wanted.
//!
//! Time is how long it has been since whichever moment the caller chose.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

pub mod message;
#[cfg(test)]
mod tests;

use message::{Message, Query, Record, SourceChange};

/// Wishes of an interface, and when to ask for them.
#[derive(Debug)]
pub struct Querier {
    own: IpAddr,
    role: Role,
    groups: BTreeMap<IpAddr, Wanted>,
    /// Queries that are due at some time: for a group, or for some senders of it.
    due: Vec<(Duration, Query)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// We ask; `soon` more times at the pace of the beginning.
    Querier { next: Duration, soon: u8 },
    /// Somebody with a lower address does, unless nothing is heard of it up to then.
    NonQuerier { until: Duration },
}

/// Until when a group is wanted; zero: it is not.
#[derive(Debug)]
struct Wanted {
    /// When somebody wanted it first.
    since: Duration,
    from_any: Duration,
    from: BTreeMap<IpAddr, Duration>,
}

impl Querier {
    /// `own` is where our queries come from.
    #[must_use]
    pub fn new(own: IpAddr, now: Duration) -> Self {
        Self {
            own,
            role: Role::Querier {
                next: now,
                soon: ROBUSTNESS,
            },
            groups: BTreeMap::new(),
            due: Vec::new(),
        }
    }

    /// Queries come from another address from now on. What hosts want stays, and they are asked once.
    pub fn set_address(&mut self, own: IpAddr, now: Duration) {
        self.own = own;
        self.role = Role::Querier { next: now, soon: 1 };
    }

    /// Takes in what somebody else on the link has said. What there is no room for is not heard.
    pub fn handle(&mut self, heard: Message, now: Duration) {
        match heard {
            Message::Reports(records) => {
                for record in records {
                    self.handle_record(record, now);
                }
            }
            Message::Query { from, group, sources } => self.handle_query(from, group, &sources, now),
        }
    }

    /// Forgets what is no longer wanted, and returns the queries that are due.
    pub fn tick(&mut self, now: Duration) -> Vec<Query> {
        self.groups.retain(|_, wanted| {
            wanted.from.retain(|_, until| *until > now);
            if wanted.from_any <= now {
                wanted.from_any = Duration::ZERO;
            }
            !wanted.from_any.is_zero() || !wanted.from.is_empty()
        });
        if let Role::NonQuerier { until } = self.role
            && until <= now
        {
            self.role = Role::Querier {
                next: now,
                soon: ROBUSTNESS,
            };
        }
        let Role::Querier { next, soon } = self.role else {
            self.due.clear();
            return Vec::new();
        };
        let mut queries = Vec::new();
        if next <= now {
            queries.push(Query::general());
            let pause = if soon > 1 {
                QUERY_INTERVAL / 4
            } else {
                QUERY_INTERVAL
            };
            self.role = Role::Querier {
                next: now + pause,
                soon: soon.saturating_sub(1),
            };
        }
        self.due.retain(|(at, query)| {
            if *at > now {
                return true;
            }
            queries.push(query.clone());
            false
        });
        queries
    }

    /// When to tick next.
    #[must_use]
    pub fn next_tick(&self) -> Duration {
        let role = match self.role {
            Role::Querier { next, .. } => next,
            Role::NonQuerier { until } => until,
        };
        let wanted = self.groups.values().flat_map(|wanted| {
            let from_any = (!wanted.from_any.is_zero()).then_some(wanted.from_any);
            wanted.from.values().copied().chain(from_any)
        });
        let due = self.due.iter().map(|(at, _)| *at);
        wanted.chain(due).fold(role, Duration::min)
    }

    /// What is wanted, and from whom where that is not anybody. What has been wanted for longest comes first.
    pub fn wanted(&self, now: Duration) -> impl Iterator<Item = (IpAddr, Option<IpAddr>)> {
        let mut groups: Vec<_> = self.groups.iter().collect();
        groups.sort_by_key(|(_, wanted)| wanted.since);
        groups.into_iter().flat_map(move |(group, wanted)| {
            let from_any = wanted.from_any > now;
            let some = wanted
                .from
                .iter()
                .filter(move |(_, until)| !from_any && **until > now);
            let some = some.map(|(from, _)| (*group, Some(*from)));
            from_any.then_some((*group, None)).into_iter().chain(some)
        })
    }

    fn handle_record(&mut self, record: Record, now: Duration) {
        let Record { group, change } = record;
        if !is_routable(group) || (!self.groups.contains_key(&group) && self.groups.len() == MAX_GROUPS) {
            return;
        }
        let soon = now + LAST_MEMBER_QUERY_TIME;
        match change {
            SourceChange::Any => {
                self.wanted_mut(group, now).from_any = now + GROUP_MEMBERSHIP_INTERVAL;
                // It is still wanted: no use in asking on.
                self.due.retain(|(_, query)| query.group != Some(group));
            }
            SourceChange::Include { sources, exclusive } => {
                let wanted = self.wanted_mut(group, now);
                for from in sources {
                    if wanted.from.len() < MAX_SOURCES || wanted.from.contains_key(&from) {
                        wanted.from.insert(from, now + GROUP_MEMBERSHIP_INTERVAL);
                    }
                }
                if exclusive && wanted.from_any > soon {
                    wanted.from_any = soon;
                    self.schedule_query(Query::group(group), now);
                }
            }
            SourceChange::Block(sources) => {
                let Some(wanted) = self.groups.get_mut(&group) else {
                    return;
                };
                let mut asked = Vec::new();
                for from in sources {
                    if let Some(until) = wanted.from.get_mut(&from).filter(|until| **until > soon) {
                        *until = soon;
                        asked.push(from);
                    }
                }
                if !asked.is_empty() {
                    self.schedule_query(Query::sources(group, asked), now);
                }
            }
        }
    }

    fn wanted_mut(&mut self, group: IpAddr, now: Duration) -> &mut Wanted {
        self.groups.entry(group).or_insert_with(|| Wanted {
            since: now,
            from_any: Duration::ZERO,
            from: BTreeMap::new(),
        })
    }

    /// Somebody else asks. Whoever has the lowest address goes on doing so.
    fn handle_query(&mut self, from: IpAddr, group: Option<IpAddr>, sources: &[IpAddr], now: Duration) {
        if from.is_unspecified() || from >= self.own {
            return;
        }
        self.role = Role::NonQuerier {
            until: now + OTHER_QUERIER_PRESENT_INTERVAL,
        };
        let Some(wanted) = group.and_then(|group| self.groups.get_mut(&group)) else {
            return;
        };
        let soon = now + LAST_MEMBER_QUERY_TIME;
        if sources.is_empty() {
            wanted.from_any = wanted.from_any.min(soon);
        }
        for from in sources {
            if let Some(until) = wanted.from.get_mut(from) {
                *until = (*until).min(soon);
            }
        }
    }

    /// Asks now and once more.
    fn schedule_query(&mut self, query: Query, now: Duration) {
        if matches!(self.role, Role::Querier { .. }) && self.due.len() < MAX_GROUPS {
            self.due.push((now, query.clone()));
            self.due.push((now + LAST_MEMBER_QUERY_TIME / 2, query));
        }
    }
}

/// Groups of the link itself go no further (RFC 5771 section 4, RFC 4291 section 2.7).
fn is_routable(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(v4) => v4.is_multicast() && v4.octets()[..3] != [224, 0, 0],
        IpAddr::V6(v6) => v6.is_multicast() && v6.octets()[1] & 0xf > 2,
    }
}

/// How often a message is sent of which one may be lost (RFC 3376 section 8.1).
const ROBUSTNESS: u8 = 2;

/// Between general queries (section 8.2).
const QUERY_INTERVAL: Duration = Duration::from_secs(125);

/// From the last report to the end of a membership (section 8.4): two intervals and the time for an answer.
const GROUP_MEMBERSHIP_INTERVAL: Duration = Duration::from_secs(260);

/// From the last query of another querier to ours (section 8.5).
const OTHER_QUERIER_PRESENT_INTERVAL: Duration = Duration::from_secs(255);

/// From somebody's leave to the end, unless somebody else stays (section 8.8): two queries, one second each.
const LAST_MEMBER_QUERY_TIME: Duration = Duration::from_secs(2);

/// Groups on one interface, and senders of one group, that are remembered.
const MAX_GROUPS: usize = 4096;
const MAX_SOURCES: usize = 64;
