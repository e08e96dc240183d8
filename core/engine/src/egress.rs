//! Egress rules: what the user allows and denies beyond [`crate::policy`]'s own table.
//!
//! Deny wins, wherever it stands. Where there is an allow rule, what none of them names is refused. An address is
//! judged as the guest wrote it, as it is on the host's side, and as each IPv4 address that a translator would take out
//! of it: a deny rule for any of those refuses it, an allow rule has to name one of the first two.
//!
//! A rule may name a domain. Its addresses are learned from what the DNS forwarder answers, so while there is such a
//! rule no other resolver may be asked. Workers share what is learned; everything else here is one worker's.

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

/// The rules, and how often each was met.
#[derive(Clone, Debug, Default)]
pub struct Egress {
    entries: Vec<Entry>,
    names: Names,
    /// Destinations that no allow rule names, and resolvers other than the forwarder.
    unlisted: Tally,
    resolvers: Tally,
    news: Vec<News>,
    /// When the addresses of this worker's flows are looked at next.
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
    /// When a refusal was last news, and how many there were since.
    told: Option<Instant>,
    untold: u64,
}

/// The destination of a packet of the guest's.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// By which protocol.
    pub protocol: EgressProtocol,
    /// The address that the guest wrote.
    pub written: IpAddr,
    /// The address on the host's side.
    pub remote: IpAddr,
    /// IPv4 addresses inside the written one.
    pub embedded: &'a [Ipv4Addr],
    /// TCP's and UDP's port; `None` for any of them.
    pub port: Option<u16>,
}

/// Why a destination is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ground {
    /// The deny rule at this place.
    Rule(usize),
    /// No allow rule names it.
    Unlisted,
    /// A resolver that the forwarder does not hear, while rules name domains.
    Resolver,
}

/// A refusal to be logged: a line of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News(String);

impl Egress {
    /// These rules.
    #[must_use]
    pub fn new(rules: &[EgressRule]) -> Self {
        let mut egress = Self::default();
        egress.set(rules);
        egress
    }

    /// Other rules. Those that stay keep their counts, and domains that are still named keep their addresses.
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

    /// Returns true if `to` may be reached. Counts the rule that says so.
    pub fn check(&mut self, to: &Destination<'_>, now: Instant) -> bool {
        let ground = match self.ground(to, now) {
            Ok(None) => return true,
            Ok(Some(place)) => {
                let entry = &mut self.entries[place];
                entry.tally.hits += 1;
                if entry.name.as_ref().is_some_and(|name| name.hold(to, now)) {
                    self.sweep.get_or_insert(now + SWEEP);
                }
                return true;
            }
            Err(ground) => ground,
        };
        self.refuse(ground, to, now);
        false
    }

    /// As [`Self::check`], counting nothing: whether a flow that there is may stay.
    #[must_use]
    pub fn allows(&self, to: &Destination<'_>, now: Instant) -> bool {
        self.ground(to, now).is_ok()
    }

    /// The guest asks the forwarder over TCP, whose answers are not looked at. Whether it may; counts it if not.
    pub fn check_stream_to_forwarder(&mut self, to: &Destination<'_>, now: Instant) -> bool {
        let may = !self.names_domains();
        if !may {
            self.refuse(Ground::Resolver, to, now);
        }
        may
    }

    /// Learns the addresses in an answer of the forwarder's that is about to be passed on.
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

    /// When [`Self::keep`] is to be told of this worker's flows.
    #[must_use]
    pub fn next_sweep(&self) -> Option<Instant> {
        self.sweep
    }

    /// Keeps what is known of addresses that this worker's flows lead to.
    pub fn keep(&mut self, addresses: impl Iterator<Item = IpAddr>, now: Instant) {
        let mut kept = false;
        for address in addresses {
            for name in self.entries.iter().filter_map(|entry| entry.name.as_ref()) {
                kept |= name.keep(address, now);
            }
        }
        self.sweep = kept.then(|| now + SWEEP);
    }

    /// Refusals to tell of: no rule's more than once a second.
    pub fn take_news(&mut self) -> Vec<News> {
        core::mem::take(&mut self.news)
    }

    /// Returns the number of times that each rule matched, by its text; then of destinations that no allow rule names,
    /// and of resolvers.
    pub fn counts(&self) -> impl Iterator<Item = (String, u64)> {
        let rules = self
            .entries
            .iter()
            .map(|entry| (entry.rule.to_string(), entry.tally.hits));
        rules.chain([
            (UNLISTED.to_owned(), self.unlisted.hits),
            (RESOLVER.to_owned(), self.resolvers.hits),
        ])
    }

    /// The rules.
    pub fn rules(&self) -> impl Iterator<Item = &EgressRule> {
        self.entries.iter().map(|entry| &entry.rule)
    }

    /// The allow rule that admits `to`, where one is needed.
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

    fn refuse(&mut self, ground: Ground, to: &Destination<'_>, now: Instant) {
        let (tally, why) = match ground {
            Ground::Rule(place) => {
                let entry = &mut self.entries[place];
                (&mut entry.tally, &entry.rule as &dyn fmt::Display)
            }
            Ground::Unlisted => (&mut self.unlisted, &UNLISTED as &dyn fmt::Display),
            Ground::Resolver => (&mut self.resolvers, &RESOLVER as &dyn fmt::Display),
        };
        tally.hits += 1;
        tally.untold += 1;
        if tally.told.is_some_and(|told| now.since(told) < QUIET) {
            return;
        }
        tally.told = Some(now);
        let times = match core::mem::take(&mut tally.untold) {
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
    }
}

impl Entry {
    fn denies(&self, to: &Destination<'_>, now: Instant) -> bool {
        // Of a port that is not known nothing can be said.
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

/// The text in place of a rule's where there is none.
const UNLISTED: &str = "no rule allows it";
const RESOLVER: &str = "rules name domains, so only our resolver may be asked, and over UDP";

/// RFC 1035 section 4.2, RFC 7858 section 3.1.
const DNS: u16 = 53;
const DNS_OVER_TLS: u16 = 853;

/// The interval between reports of one rule's refusals.
const QUIET: Duration = Duration::from_secs(1);

/// Twice before [`HOLD`] is over, flows are asked where they lead.
const SWEEP: Duration = Duration::from_secs(HOLD.as_secs() / 2);
