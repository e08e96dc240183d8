//! Domains in egress rules, with the addresses learned from DNS responses.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::answer::DnsAnswer;
use super::rule::{Action, EgressRule, Pattern};
use super::{Destination, Instant};

/// The way in which an egress rule uses the addresses of its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressUse {
    /// The guest may reach the addresses.
    Allow,
    /// The guest may reach the addresses by connections that prove the domain.
    Pin,
    /// The guest may not reach the addresses.
    Deny,
}

impl AddressUse {
    pub(super) fn of(rule: &EgressRule) -> Self {
        match (rule.action, rule.to.proof) {
            (Action::Allow, None) => Self::Allow,
            (Action::Allow, Some(_)) => Self::Pin,
            (Action::Deny, _) => Self::Deny,
        }
    }
}

/// The domain of an egress rule and its learned addresses, shared by all workers.
#[derive(Debug)]
pub(super) struct LearnedDomain {
    pub(super) address_use: AddressUse,
    pub(super) pattern: Pattern,
    /// Learned addresses, each with the time until which new flows to it match the rule.
    pub(super) learned: Mutex<BTreeMap<IpAddr, Instant>>,
}

/// The domains of all egress rules, shared by all workers. A domain that is in the old and the new rules keeps its
/// addresses.
#[derive(Clone, Debug, Default)]
pub(super) struct LearnedDomains(Arc<Mutex<Vec<Weak<LearnedDomain>>>>);

impl LearnedDomains {
    pub(super) fn get(&self, address_use: AddressUse, pattern: &Pattern) -> Arc<LearnedDomain> {
        let mut names = lock(&self.0);
        names.retain(|name| name.strong_count() > 0);
        let known = names
            .iter()
            .filter_map(Weak::upgrade)
            .find(|name| name.address_use == address_use && name.pattern == *pattern);
        known.unwrap_or_else(|| {
            let name = Arc::new(LearnedDomain {
                address_use,
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

impl LearnedDomain {
    pub(super) fn has(&self, address: IpAddr, now: Instant) -> bool {
        lock(&self.learned)
            .get(&address)
            .is_some_and(|until| now <= *until)
    }

    /// Learns the addresses of this domain in a DNS response.
    pub(super) fn learn(&self, answer: &DnsAnswer, now: Instant) {
        let mut learned = lock(&self.learned);
        for (address, ttl) in answer.addresses(self.address_use, &self.pattern) {
            let ttl = Duration::from_secs(ttl.into());
            let until = match self.address_use {
                AddressUse::Allow => now + ttl.clamp(LEAST, MOST),
                AddressUse::Pin => now + ttl.clamp(LEAST_PIN, MOST) + PIN_GRACE,
                // A deny rule keeps the address longer than its TTL, because the guest may use it for longer.
                AddressUse::Deny => now + MOST,
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

    /// Renews the learned addresses that are in the sorted list `addresses`, to which flows lead. `Unknown`: there is none.
    pub(super) fn renew_all(&self, addresses: &[IpAddr], now: Instant) -> Renewal {
        let mut renewal = Renewal::Unknown;
        if self.address_use == AddressUse::Pin {
            // A connection that has proved its domain does not need the pin any more.
            return renewal;
        }
        let mut renew = |until: &mut Instant| {
            if now <= *until {
                *until = (now + HOLD).max(*until);
                renewal = Renewal::Renewed;
            }
        };
        let mut learned = lock(&self.learned);
        if addresses.len() < learned.len() {
            for address in addresses {
                learned.get_mut(address).map(&mut renew);
            }
        } else {
            for (address, until) in learned.iter_mut() {
                if addresses.binary_search(address).is_ok() {
                    renew(until);
                }
            }
        }
        renewal
    }

    /// Renews an address to which a flow leads.
    fn renew(&self, address: IpAddr, now: Instant) -> Renewal {
        if self.address_use == AddressUse::Pin {
            return Renewal::Unknown;
        }
        let mut learned = lock(&self.learned);
        let Some(until) = learned.get_mut(&address).filter(|until| now <= **until) else {
            return Renewal::Unknown;
        };
        *until = (now + HOLD).max(*until);
        Renewal::Renewed
    }
}

/// Locks a mutex even after another thread has panicked with the lock; the data is never inconsistent under the lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time for which an address stays known after its last use, longer than an unused echo id is kept.
pub const HOLD: Duration = Duration::from_secs(64);

/// Minimum time for which a learned address is known; a client may take that long to connect.
const LEAST: Duration = Duration::from_secs(30);

/// Minimum time for which the address of a rule that requires proof is known, before [`PIN_GRACE`].
const LEAST_PIN: Duration = Duration::from_secs(60);

/// Time for which such an address is known after its TTL, because clients use addresses for longer.
const PIN_GRACE: Duration = Duration::from_secs(300);

/// Maximum time for which a learned address is known: resolvers keep records for a day by default (RFC 8767 section 4
/// permits a week).
const MOST: Duration = Duration::from_secs(86_400);

/// Maximum number of learned addresses of one domain. Beyond it, the one that would expire first is removed.
pub(super) const LIMIT: usize = 1_024;
