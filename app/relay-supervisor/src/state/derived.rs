//! Rules that are derived from the kernel's multicast routes and from the memberships of hosts behind proxies.

mod changes;

use std::time::{Duration, Instant};

use pontoon_process::error::Error;
use pontoon_relay::Rule;

use super::{Relay, capacity_beside, exceeds_message};
use crate::counter_rows;

#[cfg(test)]
pub(super) use changes::MAX_CHANGES;
pub(super) use changes::PendingChanges;

impl Relay {
    /// Sets the rules that are derived from the kernel's multicast routes; the next [`Relay::update_derived_rules`]
    /// installs them.
    pub(crate) fn set_kernel_rules(&mut self, rules: Vec<Rule>) {
        self.kernel_rules = rules;
        self.derived_outdated = true;
    }

    /// Derives rules from the kernel's multicast routes and from the memberships that queriers have reported, as many as
    /// there are rows of counters for, and installs a limited number of them ([`PendingChanges`]). Returns without effect if
    /// neither has changed, or before the next derivation is due ([`DerivePacing`]).
    pub(crate) fn update_derived_rules(&mut self, now: Instant) {
        self.derived_outdated |= self.proxies.take_changed();
        if !self.derived_outdated || now < self.derive_at {
            return;
        }
        self.derived_outdated = false;
        let begin = cpu_time();
        let capacity = capacity_beside(&self.configured);
        let kernel_rules = counter_rows::fit(&self.kernel_rules, capacity);
        let rows = capacity - counter_rows::needed(kernel_rules);
        let (mut rules, mut left_out) = self.proxies.rules(rows);
        rules.extend_from_slice(kernel_rules);
        left_out += self.kernel_rules.len() - kernel_rules.len();
        let rules = self.pending_changes.step(&self.derived, rules, capacity);
        if let Err(error) = self.set_derived_rules(rules, left_out) {
            tracing::error!("{error}; rules unchanged");
        }
        self.derived_outdated |= !self.pending_changes.is_empty();
        self.derive_at = self.derive_pacing.next(now, cpu_time().saturating_sub(begin));
    }

    /// Replaces the derived rules. `left_out` is the number of further rules for which no rows of counters are free.
    ///
    /// # Errors
    /// Same as [`Relay::replace`].
    pub(super) fn set_derived_rules(&mut self, mut derived: Vec<Rule>, left_out: usize) -> Result<(), Error> {
        match (self.left_out, left_out) {
            (0, 1..) => tracing::warn!("too many rules: {left_out} derived rules are not installed"),
            (1.., 0) => tracing::info!("all derived rules are installed again"),
            _ => {}
        }
        self.left_out = left_out;
        if !self.source_warning_logged && derived.iter().any(|rule| rule.input.from.is_some()) {
            self.source_warning_logged = true;
            tracing::warn!(
                "relayed datagrams carry this host's source address; source-specific (SSM) receivers will not get them"
            );
        }
        self.remove_invalid(&mut derived);
        if derived == self.derived {
            return Ok(());
        }
        self.set_rules(self.configured.union(&derived))?;
        self.derived = derived;
        Ok(())
    }

    /// Removes derived rules that a worker could not parse or that exceed a message. Hosts and routing daemons determine
    /// parts of them, and an invalid rule must not end a worker, which forwards by all other rules.
    fn remove_invalid(&mut self, derived: &mut Vec<Rule>) {
        derived.retain(|rule| {
            let installed = self.installed.get(&rule.input);
            if installed.is_some_and(|entry| entry.rule == *rule)
                || rule.parses_back() && !exceeds_message(rule)
            {
                return true;
            }
            if !self.invalid_rule_logged {
                self.invalid_rule_logged = true;
                tracing::warn!(
                    "a derived rule is invalid and not installed: {:?}",
                    rule.to_string()
                );
            }
            false
        });
    }
}

/// Returns the CPU time of this thread. Time in which other threads had the CPU does not count.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Minimum time between the starts of two derivations of rules.
pub(super) const MIN_DERIVE_INTERVAL: Duration = Duration::from_millis(100);

/// Minimum time between two derivations, as a multiple of the CPU time that the first one took: hosts determine both the
/// number of changes and their cost, and must not take more than about a tenth of the supervisor's time.
const DERIVE_PAUSE: u32 = 10;

/// Pauses that may be made up for later, those for two seconds of CPU time: thousands of rules are installed without pauses at
/// the start, or when many hosts start at the same time.
pub(super) const DERIVE_BURST: Duration = Duration::from_secs(22);

/// Times of derivations.
#[derive(Debug)]
pub(super) struct DerivePacing {
    /// End of the pauses after all derivations so far.
    paused_until: Instant,
}

impl DerivePacing {
    pub(super) fn new(now: Instant) -> Self {
        Self { paused_until: now }
    }

    /// Returns the earliest time of the next derivation after one that started at `start` and took `cost`.
    pub(super) fn next(&mut self, start: Instant, cost: Duration) -> Instant {
        self.paused_until = self.paused_until.max(start) + cost * (1 + DERIVE_PAUSE);
        let after_pauses = self.paused_until.checked_sub(DERIVE_BURST).unwrap_or(start);
        after_pauses.max(start + MIN_DERIVE_INTERVAL)
    }
}
