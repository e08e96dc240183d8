//! Egress rules: what the user allows and denies beyond [`crate::policy`]'s own table.
//!
//! Deny rules take precedence, at any position. If there is an allow rule, destinations that none of them matches are
//! refused. A deny rule is compared with the address that the guest has sent, with the address on the host's side, and with
//! each IPv4 address that a translator would extract from it; an allow rule is compared with the first two.
//!
//! A rule may name a domain. Its addresses are learned from the responses of the DNS forwarder, so while there is such a rule
//! no other resolver may be queried. Workers share the learned addresses; everything else here belongs to one worker.

mod answer;
mod name;
mod rule;
#[cfg(test)]
mod tests;

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::sync::Arc;

use crate::Instant;
use name::{Name, Names};

pub use name::HOLD;
pub use rule::{Action, EgressProtocol, EgressRule, Match, Pattern, Target};

/// The rules, with the number of matches of each.
#[derive(Clone, Debug, Default)]
pub struct Egress {
    entries: Vec<Entry>,
    names: Names,
    /// Destinations that no allow rule names, and resolvers other than the forwarder.
    unlisted: Tally,
    resolvers: Tally,
    /// The number of matches of all of them.
    matches: u64,
    news: Vec<News>,
    /// The time at which the addresses of this worker's flows are renewed next.
    sweep: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Entry {
    rule: EgressRule,
    /// The known addresses of the domain that the rule names.
    name: Option<Arc<Name>>,
    tally: Tally,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    hits: u64,
    /// The time of the last report of a refusal, and the number of refusals since.
    reported: Option<Instant>,
    unreported: u64,
}

/// The destination of a packet from the guest.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// The protocol.
    pub protocol: EgressProtocol,
    /// The destination address that the guest has sent.
    pub written: IpAddr,
    /// The address on the host's side.
    pub remote: IpAddr,
    /// IPv4 addresses embedded in the written one.
    pub embedded: &'a [Ipv4Addr],
    /// TCP's and UDP's port; `None` for any of them.
    pub port: Option<u16>,
}

/// The decision of the rules about a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// The guest may reach it.
    Allowed,
    /// The guest may not reach it.
    Refused,
}

/// The reason why a destination is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ground {
    /// The deny rule at this index.
    Rule(usize),
    /// No allow rule matches it.
    Unlisted,
    /// A resolver other than the forwarder, while rules name domains.
    Resolver,
}

/// A refusal to be logged: a line of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News(String);

impl Egress {
    /// Returns a policy of these rules.
    #[must_use]
    pub fn new(rules: &[EgressRule]) -> Self {
        let mut egress = Self::default();
        egress.set(rules);
        egress
    }

    /// Replaces the rules. Rules that stay keep their counts, and domains that are still named keep their addresses.
    pub fn set(&mut self, rules: &[EgressRule]) {
        let entry = |rule: &EgressRule| Entry {
            rule: rule.clone(),
            name: match &rule.to.target {
                Target::Name(pattern) => Some(self.names.get(rule.action, pattern)),
                Target::Any | Target::Net(_) => None,
            },
            tally: self
                .entries
                .iter()
                .find(|entry| entry.rule == *rule)
                .map_or_else(Tally::default, |entry| entry.tally),
        };
        self.entries = rules.iter().map(entry).collect();
    }

    /// Returns true if nothing is refused.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns true if rules name domains, so that the forwarder is the only resolver.
    #[must_use]
    pub fn names_domains(&self) -> bool {
        self.entries.iter().any(|entry| entry.name.is_some())
    }

    /// Decides whether `to` may be reached, and counts the rule that matches.
    pub fn decide(&mut self, to: &Destination<'_>, now: Instant) -> Decision {
        match self.ground(to, now) {
            Ok(None) => Decision::Allowed,
            Ok(Some(place)) => {
                let entry = &mut self.entries[place];
                entry.tally.hits += 1;
                self.matches += 1;
                if let Some(name) = &entry.name {
                    let held = name.hold(to, now);
                    if held {
                        self.sweep.get_or_insert(now + SWEEP);
                    }
                }
                Decision::Allowed
            }
            Err(ground) => self.refuse(ground, to, now),
        }
    }

    /// As [`Self::decide`] for an existing flow, without counting.
    #[must_use]
    pub fn allows(&self, to: &Destination<'_>, now: Instant) -> bool {
        self.ground(to, now).is_ok()
    }

    /// Decides about a TCP connection to the forwarder, whose answers are not parsed. It is refused, and counted, if rules
    /// name domains.
    pub fn decide_stream_to_forwarder(&mut self, to: &Destination<'_>, now: Instant) -> Decision {
        match self.names_domains() {
            true => self.refuse(Ground::Resolver, to, now),
            false => Decision::Allowed,
        }
    }

    /// Learns the addresses in a response of the forwarder before it is passed on.
    pub(crate) fn learn(&self, message: &[u8], now: Instant) {
        if !self.names_domains() {
            return;
        }
        let Some(answer) = answer::parse(message) else {
            return;
        };
        for name in self.entries.iter().filter_map(|entry| entry.name.as_ref()) {
            name.learn(&answer, now);
        }
    }

    /// Returns the time of the next call of [`Self::keep`].
    #[must_use]
    pub fn next_sweep(&self) -> Option<Instant> {
        self.sweep
    }

    /// Renews the known addresses to which this worker's flows lead.
    pub fn keep(&mut self, addresses: impl Iterator<Item = IpAddr>, now: Instant) {
        let mut kept = false;
        for address in addresses {
            for name in self.entries.iter().filter_map(|entry| entry.name.as_ref()) {
                kept |= name.keep(address, now);
            }
        }
        self.sweep = kept.then(|| now + SWEEP);
    }

    /// Takes the refusals to be logged, at most one a second for each rule.
    pub fn take_news(&mut self) -> Vec<News> {
        core::mem::take(&mut self.news)
    }

    /// As [`Self::hits`], with the text of each rule.
    #[cfg(test)]
    pub fn counts(&self) -> impl Iterator<Item = (String, u64)> {
        let rules = self.rules().map(ToString::to_string);
        rules
            .chain([UNLISTED, RESOLVER].map(str::to_owned))
            .zip(self.hits())
    }

    /// Returns the number of times that each rule matched, in the order of the rules; then of destinations that no allow rule
    /// names, and of resolvers.
    pub fn hits(&self) -> impl Iterator<Item = u64> {
        let rules = self.entries.iter().map(|entry| entry.tally.hits);
        rules.chain([self.unlisted.hits, self.resolvers.hits])
    }

    /// Returns a number that increases with each of [`Self::hits`].
    #[must_use]
    pub fn matches(&self) -> u64 {
        self.matches
    }

    /// Returns the rules.
    pub fn rules(&self) -> impl Iterator<Item = &EgressRule> {
        self.entries.iter().map(|entry| &entry.rule)
    }

    /// Returns the allow rule that permits `to`, if one is needed.
    fn ground(&self, to: &Destination<'_>, now: Instant) -> Result<Option<usize>, Ground> {
        let asks = to.protocol != EgressProtocol::Icmp && matches!(to.port, Some(DNS | DNS_OVER_TLS));
        if asks && self.names_domains() {
            return Err(Ground::Resolver);
        }
        let mut closed = false;
        let mut admitted = None;
        for (place, entry) in self.entries.iter().enumerate() {
            match entry.rule.action {
                Action::Deny => {
                    if entry.denies(to, now) {
                        return Err(Ground::Rule(place));
                    }
                }
                Action::Allow => {
                    closed = true;
                    if admitted.is_none() && entry.allows(to, now) {
                        admitted = Some(place);
                    }
                }
            }
        }
        match admitted {
            None if closed => Err(Ground::Unlisted),
            admitted => Ok(admitted),
        }
    }

    /// Counts a refusal, and reports it unless the last report is too recent.
    fn refuse(&mut self, ground: Ground, to: &Destination<'_>, now: Instant) -> Decision {
        let (tally, why) = match ground {
            Ground::Rule(place) => {
                let entry = &mut self.entries[place];
                (&mut entry.tally, &entry.rule as &dyn fmt::Display)
            }
            Ground::Unlisted => (&mut self.unlisted, &UNLISTED as &dyn fmt::Display),
            Ground::Resolver => (&mut self.resolvers, &RESOLVER as &dyn fmt::Display),
        };
        tally.hits += 1;
        self.matches += 1;
        tally.unreported += 1;
        if tally.reported.is_some_and(|last| now.since(last) < QUIET) {
            return Decision::Refused;
        }
        tally.reported = Some(now);
        let times = match core::mem::take(&mut tally.unreported) {
            1 => String::new(),
            times => format!(" ({times} times)"),
        };
        let protocol = to.protocol;
        let to = match to.port {
            Some(port) => SocketAddr::new(to.written, port).to_string(),
            None => to.written.to_string(),
        };
        self.news
            .push(News(format!("refused {protocol} to {to}: {why}{times}")));
        Decision::Refused
    }
}

impl Entry {
    fn denies(&self, to: &Destination<'_>, now: Instant) -> bool {
        // A rule with ports matches no unknown port.
        let named = match (self.rule.to.ports, to.port) {
            (Some(_), None) => false,
            (Some(_) | None, _) => self.rule.to.is_for(to.protocol, to.port),
        };
        let embedded = to.embedded.iter().map(|inner| IpAddr::V4(*inner));
        named
            && [to.written, to.remote]
                .into_iter()
                .chain(embedded)
                .any(|address| self.names(address, now))
    }

    fn allows(&self, to: &Destination<'_>, now: Instant) -> bool {
        self.rule.to.is_for(to.protocol, to.port)
            && (self.names(to.written, now) || self.names(to.remote, now))
    }

    fn names(&self, address: IpAddr, now: Instant) -> bool {
        match (&self.rule.to.target, &self.name) {
            (Target::Any, _) => true,
            (Target::Net(net), _) => net.contains(&address),
            (Target::Name(_), name) => name.as_ref().is_some_and(|name| name.has(address, now)),
        }
    }
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text in place of a rule's if there is none.
const UNLISTED: &str = "no rule allows it";
const RESOLVER: &str = "rules name domains, so only pontoon's resolver may be queried, and over UDP";

/// RFC 1035 section 4.2, RFC 7858 section 3.1.
const DNS: u16 = 53;
const DNS_OVER_TLS: u16 = 853;

/// The interval between reports of one rule's refusals.
const QUIET: Duration = Duration::from_secs(1);

/// The interval in which addresses of flows are renewed: twice in [`HOLD`].
const SWEEP: Duration = Duration::from_secs(HOLD.as_secs() / 2);
