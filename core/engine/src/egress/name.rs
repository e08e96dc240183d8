//! Domains that rules name, and the addresses that the forwarder's answers gave them.

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
    /// Addresses, and how long new flows may take them for this name.
    learned: Mutex<BTreeMap<IpAddr, Instant>>,
}

/// Every name that a rule names, so that what is known of it outlives the rules. All workers share it.
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

impl Name {
    pub(super) fn has(&self, address: IpAddr, now: Instant) -> bool {
        lock(&self.learned)
            .get(&address)
            .is_some_and(|until| now <= *until)
    }

    /// Takes the addresses that an answer gives this name.
    pub(super) fn learn(&self, answer: &Answer, now: Instant) {
        let mut learned = lock(&self.learned);
        for (address, ttl) in answer.addresses(self.action, &self.pattern) {
            let until = match self.action {
                Action::Allow => now + Duration::from_secs(ttl.into()).clamp(LEAST, MOST),
                // The guest knows it for as long as it likes, whatever the record's owner says.
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

    /// A flow begins: its addresses stay known as long as it may live without being looked at. Says whether they were
    /// known.
    pub(super) fn hold(&self, to: &Destination<'_>, now: Instant) -> bool {
        let written = self.keep(to.written, now);
        self.keep(to.remote, now) || written
    }

    /// A flow leads to this address. Says whether it is known.
    pub(super) fn keep(&self, address: IpAddr, now: Instant) -> bool {
        let mut learned = lock(&self.learned);
        let Some(until) = learned.get_mut(&address).filter(|until| now <= **until) else {
            return false;
        };
        *until = (now + HOLD).max(*until);
        true
    }
}

/// A lock that another thread's panic does not close: nothing is left half done under it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time for which an address stays known after its last use: longer than an echo id is kept without being used.
pub const HOLD: Duration = Duration::from_secs(64);

/// However short-lived a record, its address is known for as long as a client may take to connect.
const LEAST: Duration = Duration::from_secs(30);

/// However long-lived, not beyond what resolvers keep (RFC 8767 section 4 has a week at most; a day is their default).
const MOST: Duration = Duration::from_secs(86_400);

/// Addresses of one name. With more, the one that would go first goes.
pub(super) const LIMIT: usize = 1_024;
