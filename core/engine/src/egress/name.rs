//! Domains in rules, and their addresses, learned from the forwarder's responses.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::answer::Answer;
use super::rule::{Action, Pattern};
use super::{Destination, Instant};

/// The domain of one rule and its known addresses. All workers share it.
#[derive(Debug)]
pub(super) struct Name {
    action: Action,
    pattern: Pattern,
    /// Addresses, each with the time until which new flows match this name.
    learned: Mutex<BTreeMap<IpAddr, Instant>>,
}

/// The domains of all rules, so that their addresses outlive a change of the rules. All workers share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<Mutex<Vec<Weak<Name>>>>);

impl Names {
    pub(super) fn get(&self, action: Action, pattern: &Pattern) -> Arc<Name> {
        let mut names = lock(&self.0);
        names.retain(|name| name.strong_count() > 0);
        let known = names
            .iter()
            .filter_map(Weak::upgrade)
            .find(|name| name.action == action && name.pattern == *pattern);
        known.unwrap_or_else(|| {
            let name = Arc::new(Name {
                action,
                pattern: pattern.clone(),
                learned: Mutex::default(),
            });
            names.push(Arc::downgrade(&name));
            name
        })
    }
}

/// The result of renewing an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Renewal {
    /// The address is known for a longer time.
    Renewed,
    /// The address is not known.
    Unknown,
}

impl Name {
    pub(super) fn has(&self, address: IpAddr, now: Instant) -> bool {
        lock(&self.learned)
            .get(&address)
            .is_some_and(|until| now <= *until)
    }

    /// Learns the addresses of this name in a response.
    pub(super) fn learn(&self, answer: &Answer, now: Instant) {
        let mut learned = lock(&self.learned);
        for (address, ttl) in answer.addresses(self.action, &self.pattern) {
            let until = match self.action {
                Action::Allow => now + Duration::from_secs(ttl.into()).clamp(LEAST, MOST),
                // The guest may use the address longer than the record's TTL.
                Action::Deny => now + MOST,
            };
            if learned.len() >= LIMIT && !learned.contains_key(&address) {
                let first = learned.iter().min_by_key(|(_, until)| **until);
                if let Some(first) = first.map(|(address, _)| *address) {
                    learned.remove(&first);
                }
            }
            let known = learned.entry(address).or_insert(until);
            *known = until.max(*known);
        }
    }

    /// Renews the addresses of a new flow, for the time until the next sweep. `Unknown`: neither of them is known.
    pub(super) fn renew_destination(&self, to: &Destination<'_>, now: Instant) -> Renewal {
        match (self.renew(to.written, now), self.renew(to.remote, now)) {
            (Renewal::Unknown, Renewal::Unknown) => Renewal::Unknown,
            (Renewal::Renewed, _) | (_, Renewal::Renewed) => Renewal::Renewed,
        }
    }

    /// Renews an address to which a flow leads.
    pub(super) fn renew(&self, address: IpAddr, now: Instant) -> Renewal {
        let mut learned = lock(&self.learned);
        let Some(until) = learned.get_mut(&address).filter(|until| now <= **until) else {
            return Renewal::Unknown;
        };
        *until = (now + HOLD).max(*until);
        Renewal::Renewed
    }
}

/// Locks a mutex, also after a panic of another thread: no state is inconsistent under the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time for which an address stays known after its last use: longer than an echo id is kept without being used.
pub const HOLD: Duration = Duration::from_secs(64);

/// The least time for which an address is known: a client may take that long to connect.
const LEAST: Duration = Duration::from_secs(30);

/// The longest time: resolvers keep records for a day by default (RFC 8767 section 4 has a week at most).
const MOST: Duration = Duration::from_secs(86_400);

/// The limit on addresses of one name. Beyond it, the one that would expire first is removed.
pub(super) const LIMIT: usize = 1_024;
