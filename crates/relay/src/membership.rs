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

use message::{Heard, Query, Record, Wish};

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
    Asking { next: Duration, soon: u8 },
    /// Somebody with a lower address does, unless nothing is heard of it up to then.
    Silent { until: Duration },
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
            role: Role::Asking {
                next: now,
                soon: ROBUSTNESS,
            },
            groups: BTreeMap::new(),
            due: Vec::new(),
        }
    }

    /// Queries come from another address from now on. What hosts want stays, and they are asked once.
    pub fn set_own(&mut self, own: IpAddr, now: Duration) {
        self.own = own;
        self.role = Role::Asking { next: now, soon: 1 };
    }

    /// Takes in what somebody else on the link has said. What there is no room for is not heard.
    pub fn hear(&mut self, heard: Heard, now: Duration) {
        match heard {
            Heard::Reports(records) => {
                for record in records {
                    self.record(record, now);
                }
            }
            Heard::Query { from, group, sources } => self.hear_query(from, group, &sources, now),
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
        if let Role::Silent { until } = self.role
            && until <= now
        {
            self.role = Role::Asking {
                next: now,
                soon: ROBUSTNESS,
            };
        }
        let Role::Asking { next, soon } = self.role else {
            self.due.clear();
            return Vec::new();
        };
        let mut queries = Vec::new();
        if next <= now {
            queries.push(Query::general());
            let pause = if soon > 1 { INTERVAL / 4 } else { INTERVAL };
            self.role = Role::Asking {
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
            Role::Asking { next, .. } => next,
            Role::Silent { until } => until,
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

    fn record(&mut self, record: Record, now: Duration) {
        let Record { group, wish } = record;
        if !may_be_routed(group) || (!self.groups.contains_key(&group) && self.groups.len() == MOST_GROUPS) {
            return;
        }
        let soon = now + LAST_MEMBER;
        match wish {
            Wish::FromAny => {
                self.wanted_mut(group, now).from_any = now + FORGET;
                // It is still wanted: no use in asking on.
                self.due.retain(|(_, query)| query.group != Some(group));
            }
            Wish::From { sources, only } => {
                let wanted = self.wanted_mut(group, now);
                for from in sources {
                    if wanted.from.len() < MOST_SOURCES || wanted.from.contains_key(&from) {
                        wanted.from.insert(from, now + FORGET);
                    }
                }
                if only && wanted.from_any > soon {
                    wanted.from_any = soon;
                    self.ask(Query::group(group), now);
                }
            }
            Wish::NotFrom(sources) => {
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
                    self.ask(Query::sources(group, asked), now);
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
    fn hear_query(&mut self, from: IpAddr, group: Option<IpAddr>, sources: &[IpAddr], now: Duration) {
        if from.is_unspecified() || from >= self.own {
            return;
        }
        self.role = Role::Silent {
            until: now + OTHER_QUERIER,
        };
        let Some(wanted) = group.and_then(|group| self.groups.get_mut(&group)) else {
            return;
        };
        let soon = now + LAST_MEMBER;
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
    fn ask(&mut self, query: Query, now: Duration) {
        if matches!(self.role, Role::Asking { .. }) && self.due.len() < MOST_GROUPS {
            self.due.push((now, query.clone()));
            self.due.push((now + LAST_MEMBER / 2, query));
        }
    }
}

/// Groups of the link itself go no further (RFC 5771 section 4, RFC 4291 section 2.7).
fn may_be_routed(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(v4) => v4.is_multicast() && v4.octets()[..3] != [224, 0, 0],
        IpAddr::V6(v6) => v6.is_multicast() && v6.octets()[1] & 0xf > 2,
    }
}

/// How often a message is sent of which one may be lost (RFC 3376 section 8.1).
const ROBUSTNESS: u8 = 2;

/// Between general queries (section 8.2).
const INTERVAL: Duration = Duration::from_secs(125);

/// From the last report to the end of a membership (section 8.4): two intervals and the time for an answer.
const FORGET: Duration = Duration::from_secs(260);

/// From the last query of another querier to ours (section 8.5).
const OTHER_QUERIER: Duration = Duration::from_secs(255);

/// From somebody's leave to the end, unless somebody else stays (section 8.8): two queries, one second each.
const LAST_MEMBER: Duration = Duration::from_secs(2);

/// Groups on one interface, and senders of one group, that are remembered.
const MOST_GROUPS: usize = 4096;
const MOST_SOURCES: usize = 64;
