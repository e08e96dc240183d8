//! The learned addresses of a state. Rules and match counts are not in it.

use core::net::IpAddr;

use super::Egress;
use super::name::{LIMIT, LearnedDomain, lock};
use crate::Instant;
use crate::state::{Reader, StateError, Writer};

impl Egress {
    /// Appends the learned addresses, which all workers share, if `with_names` is true, and this worker's own state.
    pub(crate) fn save(&self, to: &mut Writer<'_>, with_names: bool) {
        let Self {
            entries,
            names: _,
            // Match counts are in memory that the supervisor shares with engines.
            unlisted: _,
            resolvers: _,
            unproven: _,
            matches: _,
            // Log lines.
            notices: _,
            sweep,
            generation,
        } = self;
        to.put(sweep);
        to.put(generation);
        let named: Vec<_> = entries
            .iter()
            .filter_map(|entry| Some((entry, entry.name.as_ref()?)))
            .filter(|_| with_names)
            .collect();
        to.count(named.len());
        for (entry, name) in named {
            to.put(&entry.rule.to_string().into_bytes());
            name.save(to);
        }
    }

    /// Reads what [`Self::save`] has written. Addresses of rules that do not exist are ignored.
    pub(crate) fn load(&mut self, from: &mut Reader<'_>) -> Result<(), StateError> {
        self.sweep = from.get()?;
        self.generation = from.get()?;
        self.load_names(from)
    }

    /// Reads what [`Self::save`] has written, but takes over the learned addresses only.
    pub(crate) fn load_shared(&self, from: &mut Reader<'_>) -> Result<(), StateError> {
        let (_, _): (Option<Instant>, u32) = from.get()?;
        self.load_names(from)
    }

    fn load_names(&self, from: &mut Reader<'_>) -> Result<(), StateError> {
        for _ in 0..from.count(MOST_RULES)? {
            let rule: Vec<u8> = from.get()?;
            let learned: Vec<(IpAddr, Instant)> = from.list(LIMIT)?;
            let is_it = |text: String| text.as_bytes() == rule;
            let mut named = self.entries.iter().filter_map(|entry| Some((entry, entry.name.as_ref()?)));
            if let Some((_, name)) = named.find(|(entry, _)| is_it(entry.rule.to_string())) {
                name.restore(learned);
            }
        }
        Ok(())
    }

    /// Subjects the peers of UDP endpoints to the rules again, as a replacement of the rules does.
    pub(crate) const fn judge_again(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }
}

impl LearnedDomain {
    fn save(&self, to: &mut Writer<'_>) {
        let Self {
            address_use: _,
            pattern: _,
            learned,
        } = self;
        let learned: Vec<(IpAddr, Instant)> = lock(learned).iter().map(|(ip, until)| (*ip, *until)).collect();
        to.put(&learned);
    }

    fn restore(&self, addresses: Vec<(IpAddr, Instant)>) {
        let mut learned = lock(&self.learned);
        for (address, until) in addresses {
            if learned.len() < LIMIT || learned.contains_key(&address) {
                let known = learned.entry(address).or_insert(until);
                *known = until.max(*known);
            }
        }
    }
}

/// Maximum number of rules with domains in a state.
const MOST_RULES: usize = 1 << 16;
