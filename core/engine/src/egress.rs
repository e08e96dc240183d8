//! Egress rules: destinations that the user allows or denies, in addition to the fixed table of [`crate::policy`].
//!
//! Deny rules take precedence, at any position. If there is an allow rule, destinations that match no allow rule are
//! refused. A deny rule is compared with the destination address that the guest has sent, with the translated address
//! on the host's side, and with each IPv4 address that a translator (NAT64, 6to4) would extract from it; an allow rule
//! is compared with the first two.
//!
//! A rule may name a domain. Its addresses are learned from the responses that pass the DNS forwarder, so while there
//! is such a rule the guest may query no other resolver. Workers share the learned addresses; all other state here
//! belongs to one worker.

mod answer;
mod name;
mod proof;
mod refused;
mod rule;
mod selection;
mod state;
#[cfg(test)]
mod tests;

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::sync::Arc;

use crate::Instant;
use crate::state::record_enum;
use name::{AddressUse, LearnedDomain, LearnedDomains, Renewal};

pub use name::HOLD;
pub use proof::{Unproven, UnprovenCause};
pub use refused::RefusedFlows;
pub use rule::{Action, EgressProtocol, EgressRule, Match, Pattern, Proof, Target};
pub use selection::DestinationSelection;

/// The egress rules of one worker, with the number of matches of each.
#[derive(Clone, Debug, Default)]
pub struct Egress {
    entries: Vec<EgressEntry>,
    names: LearnedDomains,
    /// Refusals because no allow rule matches; `resolvers` counts those of DNS resolvers other than the forwarder.
    unlisted: MatchTally,
    resolvers: MatchTally,
    /// Rate limit of the log lines about connections without the proof that a rule requires, and about UDP in place of them.
    /// These refusals count as unlisted.
    unproven: MatchTally,
    /// The number of matches of all of them.
    matches: u64,
    notices: Vec<RefusalNotice>,
    /// Time at which [`Self::keep`] next renews the learned addresses to which this worker's flows lead.
    sweep: Option<Instant>,
    /// Number of times that the rules were replaced.
    generation: u32,
}

/// An egress rule with its learned addresses and its match count.
#[derive(Clone, Debug)]
struct EgressEntry {
    rule: EgressRule,
    /// The domain that the rule names, with its learned addresses; `None` for other rules.
    name: Option<Arc<LearnedDomain>>,
    tally: MatchTally,
}

/// Number of packets that matched a rule, with the state of the rate limit of its log lines.
#[derive(Clone, Copy, Debug, Default)]
struct MatchTally {
    hits: u64,
    /// Time of the last logged refusal, and number of refusals since that were not logged.
    reported: Option<Instant>,
    unreported: u64,
}

/// The destination of a packet from the guest, as egress rules compare it.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// Protocol of the packet: TCP, UDP or ICMP echo.
    pub protocol: EgressProtocol,
    /// Destination address that the guest has sent.
    pub written: IpAddr,
    /// Translated destination address on the host's side.
    pub remote: IpAddr,
    /// IPv4 addresses embedded in the IPv6 address that the guest has sent (NAT64, 6to4).
    pub embedded: &'a [Ipv4Addr],
    /// Destination port of TCP or UDP; `None` stands for any port.
    pub port: Option<u16>,
}

/// Ground on which the egress rules, or the decider, have decided about a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionGround {
    /// The rule at this index matches the destination: an allow rule has permitted it, or a deny rule has refused it.
    Rule(u32),
    /// No allow rule matches the destination.
    Unlisted,
    /// The destination is a DNS resolver other than the forwarder, while rules name domains.
    Resolver,
    /// The packet is UDP, and the rule at this index permits only TCP connections with a proof of their name there.
    TlsOnly(u32),
    /// The decider has allowed or denied the flow that the rules permit.
    Decider,
    /// The decider has redirected the flow that the rules permit.
    Redirect,
    /// The flow that the rules permit uses the upstream proxy.
    Proxy,
}

record_enum! { DecisionGround {
    0 = Rule(place),
    1 = Unlisted,
    2 = Resolver,
    3 = TlsOnly(place),
    4 = Decider,
    5 = Redirect,
    6 = Proxy,
} }

/// Decision of the egress rules about a destination, with its ground.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// The guest may reach the destination: by an allow rule, or because there is none.
    Allowed(Option<DecisionGround>),
    /// The guest may open the TCP connection, which has to prove the domain of a rule before it carries data.
    AllowedOnProof,
    /// The guest may not reach the destination.
    Refused(DecisionGround),
}

/// The reason why egress rules refuse a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusalGround {
    /// The deny rule at this index matches the destination.
    Rule(usize),
    /// No allow rule matches the destination.
    Unlisted,
    /// The destination is a DNS resolver other than the forwarder, while rules name domains.
    Resolver,
    /// The rule at this index permits only TCP connections with a proof of their name there.
    TlsOnly(usize),
}

/// The ground on which egress rules permit a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PermissionGround {
    /// There is no allow rule.
    Open,
    /// The allow rule at this index matches the destination.
    Rule(usize),
    /// Only allow rules that require a proof match the destination.
    Proof,
}

/// Log line about refused packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalNotice(String);

impl DecisionGround {
    fn of_rule(place: usize) -> Self {
        Self::Rule(u32::try_from(place).unwrap_or(u32::MAX))
    }
}

impl From<RefusalGround> for DecisionGround {
    fn from(ground: RefusalGround) -> Self {
        match ground {
            RefusalGround::Rule(place) => Self::of_rule(place),
            RefusalGround::Unlisted => Self::Unlisted,
            RefusalGround::Resolver => Self::Resolver,
            RefusalGround::TlsOnly(place) => Self::TlsOnly(u32::try_from(place).unwrap_or(u32::MAX)),
        }
    }
}

impl Egress {
    /// Creates an egress policy of these rules.
    #[must_use]
    pub fn new(rules: &[EgressRule]) -> Self {
        let mut egress = Self::default();
        egress.set(rules);
        egress
    }

    /// Replaces the rules. Rules in both lists keep their counts, and domains in both keep their learned addresses.
    pub fn set(&mut self, rules: &[EgressRule]) {
        let entry = |rule: &EgressRule| EgressEntry {
            rule: rule.clone(),
            name: match &rule.to.target {
                Target::Name(pattern) => Some(self.names.get(AddressUse::of(rule), pattern)),
                Target::Any | Target::Net(_) => None,
            },
            tally: self
                .entries
                .iter()
                .find(|entry| entry.rule == *rule)
                .map_or_else(MatchTally::default, |entry| entry.tally),
        };
        self.entries = rules.iter().map(entry).collect();
        self.generation = self.generation.wrapping_add(1);
    }

    /// Returns a number that differs after each replacement of the rules.
    pub(crate) const fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns true if there are no rules, so that no destination is refused.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns true if a rule names a domain, so that the guest may query no resolver but the forwarder.
    #[must_use]
    pub fn names_domains(&self) -> bool {
        self.entries.iter().any(|entry| entry.name.is_some())
    }

    /// Decides whether the guest may reach `to`, and counts the rule that matches.
    pub fn decide(&mut self, to: &Destination<'_>, now: Instant) -> Decision {
        match self.ground(to, now) {
            Ok(PermissionGround::Open) => Decision::Allowed(None),
            Ok(PermissionGround::Proof) => Decision::AllowedOnProof,
            Ok(PermissionGround::Rule(place)) => {
                let entry = &mut self.entries[place];
                entry.tally.hits += 1;
                self.matches += 1;
                if let Some(name) = &entry.name {
                    let renewal = name.renew_destination(to, now);
                    if renewal == Renewal::Renewed {
                        self.sweep.get_or_insert(now + SWEEP);
                    }
                }
                Decision::Allowed(Some(DecisionGround::of_rule(place)))
            }
            Err(ground) => self.refuse(ground, to.protocol, to.written, to.port, now),
        }
    }

    /// Decides as [`Self::decide`] about a flow for which a rule was counted before. Nothing is counted.
    pub(crate) fn decide_again(&self, to: &Destination<'_>, now: Instant) -> Decision {
        match self.ground(to, now) {
            Ok(PermissionGround::Open) => Decision::Allowed(None),
            Ok(PermissionGround::Rule(place)) => Decision::Allowed(Some(DecisionGround::of_rule(place))),
            Ok(PermissionGround::Proof) => Decision::AllowedOnProof,
            Err(ground) => Decision::Refused(ground.into()),
        }
    }

    /// Returns true if the rules permit the destination of an existing flow, which may have to prove a domain. Nothing is
    /// counted.
    #[must_use]
    pub fn allows(&self, to: &Destination<'_>, now: Instant) -> bool {
        self.ground(to, now).is_ok()
    }

    /// Returns the allow rule that permits a destination, if there is one; of rules that require a proof, the first. Nothing is
    /// counted.
    #[must_use]
    pub fn allowing_rule(&self, to: &Destination<'_>, now: Instant) -> Option<&EgressRule> {
        let place = match self.ground(to, now).ok()? {
            PermissionGround::Open => return None,
            PermissionGround::Rule(place) => place,
            PermissionGround::Proof => self.first_candidate(to, now)?,
        };
        self.entries.get(place).map(|entry| &entry.rule)
    }

    /// Decides about a TCP connection to the forwarder at `to`, whose answers are not parsed. It is refused, and counted, if
    /// rules name domains.
    pub fn decide_stream_to_forwarder(&mut self, to: SocketAddr, now: Instant) -> Decision {
        match self.names_domains() {
            true => self.refuse(
                RefusalGround::Resolver,
                EgressProtocol::Tcp,
                to.ip(),
                Some(to.port()),
                now,
            ),
            false => Decision::Allowed(None),
        }
    }

    /// Learns the addresses of domains in rules from a DNS response, before the response is forwarded to the guest.
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

    /// Returns the time at which [`Self::keep`] has to be called next.
    #[must_use]
    pub fn next_sweep(&self) -> Option<Instant> {
        self.sweep
    }

    /// Renews the learned addresses in `addresses`, to which this worker's flows lead.
    pub fn keep(&mut self, addresses: impl Iterator<Item = IpAddr>, now: Instant) {
        // There may be a hundred thousand flows and a thousand rules: each flow is looked at once, each name is locked
        // once, and most flows lead to few addresses.
        let mut names = self
            .entries
            .iter()
            .filter_map(|entry| entry.name.as_ref())
            .peekable();
        if names.peek().is_none() {
            self.sweep = None;
            return;
        }
        let mut addresses: Vec<IpAddr> = addresses.collect();
        addresses.sort_unstable();
        addresses.dedup();
        let mut is_in_use = false;
        for name in names {
            let renewal = name.renew_all(&addresses, now);
            is_in_use |= renewal == Renewal::Renewed;
        }
        self.sweep = is_in_use.then(|| now + SWEEP);
    }

    /// Returns and removes the log lines about refusals, at most one a second for each rule.
    pub fn take_news(&mut self) -> Vec<RefusalNotice> {
        core::mem::take(&mut self.notices)
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

    /// Returns the rules in the order of the configuration.
    pub fn rules(&self) -> impl Iterator<Item = &EgressRule> {
        self.entries.iter().map(|entry| &entry.rule)
    }

    /// Returns the ground on which the rules permit `to`; an error if they refuse it.
    fn ground(&self, to: &Destination<'_>, now: Instant) -> Result<PermissionGround, RefusalGround> {
        let asks = to.protocol != EgressProtocol::Icmp && matches!(to.port, Some(DNS | DNS_OVER_TLS));
        if asks && self.names_domains() {
            return Err(RefusalGround::Resolver);
        }
        let mut closed = false;
        let mut admitted = None;
        for (place, entry) in self.entries.iter().enumerate() {
            match entry.rule.action {
                Action::Deny => {
                    if entry.denies(to, now) {
                        return Err(RefusalGround::Rule(place));
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
            Some(place) => Ok(PermissionGround::Rule(place)),
            None if !closed => Ok(PermissionGround::Open),
            None => self.ground_by_proof(to, now),
        }
    }

    /// Counts a refusal, and adds a log line unless the last one for the same reason is too recent.
    fn refuse(
        &mut self,
        ground: RefusalGround,
        protocol: EgressProtocol,
        written: IpAddr,
        port: Option<u16>,
        now: Instant,
    ) -> Decision {
        let refused = Decision::Refused(ground.into());
        let tally = match ground {
            RefusalGround::Rule(place) => &mut self.entries[place].tally,
            RefusalGround::Unlisted => &mut self.unlisted,
            RefusalGround::Resolver => &mut self.resolvers,
            RefusalGround::TlsOnly(_) => {
                self.unlisted.hits += 1;
                &mut self.unproven
            }
        };
        self.matches += 1;
        let Some(times) = tally.report(now) else {
            return refused;
        };
        let why = match ground {
            RefusalGround::Rule(place) => self.entries[place].rule.to_string(),
            RefusalGround::Unlisted => UNLISTED.to_owned(),
            RefusalGround::Resolver => RESOLVER.to_owned(),
            RefusalGround::TlsOnly(place) => {
                format!("{} permits TLS over TCP only", self.entries[place].rule)
            }
        };
        let to = match port {
            Some(port) => SocketAddr::new(written, port).to_string(),
            None => written.to_string(),
        };
        self.notices
            .push(RefusalNotice(format!("refused {protocol} to {to}: {why}{times}")));
        refused
    }
}

impl MatchTally {
    /// Counts a refusal. Returns the end of its log line, which has the number of refusals without one; `None` if the last log
    /// line is too recent.
    fn report(&mut self, now: Instant) -> Option<String> {
        self.hits += 1;
        self.unreported += 1;
        if self.reported.is_some_and(|last| now.since(last) < QUIET) {
            return None;
        }
        self.reported = Some(now);
        Some(match core::mem::take(&mut self.unreported) {
            1 => String::new(),
            times => format!(" ({times} times)"),
        })
    }
}

impl EgressEntry {
    fn denies(&self, to: &Destination<'_>, now: Instant) -> bool {
        // A rule with ports does not match a packet without port.
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

    /// Returns true if an allow rule permits `to` without a proof.
    fn allows(&self, to: &Destination<'_>, now: Instant) -> bool {
        self.rule.to.proof.is_none()
            && self.rule.to.is_for(to.protocol, to.port)
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

impl fmt::Display for RefusalNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Text in the log and in the counts for refusals that are not due to a deny rule: no allow rule matches, or the
/// destination is another DNS resolver.
const UNLISTED: &str = "no rule allows it";
const RESOLVER: &str = "rules name domains, so only pontoon's resolver may be queried, and over UDP";

/// Port of DNS (RFC 1035 section 4.2), and of DNS over TLS (RFC 7858 section 3.1).
const DNS: u16 = 53;
const DNS_OVER_TLS: u16 = 853;

/// Minimum interval between log lines about refusals by the same rule.
const QUIET: Duration = Duration::from_secs(1);

/// Interval in which the learned addresses of flows are renewed: half of [`HOLD`].
const SWEEP: Duration = Duration::from_secs(HOLD.as_secs() / 2);
