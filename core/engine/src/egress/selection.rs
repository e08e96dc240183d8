//! Selection of flows by the text of an egress rule.

use pontoon_names::HostName;

use super::{
    Action, Destination, Egress, EgressEntry, EgressProtocol, EgressRule, Instant, Match, MatchTally, Part,
    Pattern, Target,
};

/// Destinations that the text of an egress rule names. Those of a domain are the addresses that rules with the same domain
/// have learned, and those that stand for its names.
#[derive(Clone, Debug)]
pub struct DestinationSelection(Vec<EgressEntry>);

impl Egress {
    /// Returns the destinations that `what` names.
    #[must_use]
    pub fn select(&self, what: &Match) -> DestinationSelection {
        let entry = |name| EgressEntry {
            rule: EgressRule {
                action: Action::Deny,
                to: what.clone(),
            },
            name,
            tally: MatchTally::default(),
        };
        let with_name = self
            .entries
            .iter()
            .filter(|entry| entry.rule.to.target == what.target);
        let mut entries = vec![entry(None)];
        if let Target::Name(_) = what.target {
            entries.extend(with_name.map(|other| entry(other.name.clone())));
        }
        DestinationSelection(entries)
    }
}

impl Egress {
    /// Returns true if a deny rule matches `to`. Nothing is counted.
    pub(crate) fn denies(&self, to: &Destination<'_>, now: Instant) -> bool {
        self.entries.iter().any(|entry| entry.denies(to, now))
    }

    /// Returns the part of the names that `names` matches for which a deny rule matches `to` if the connection proves the name.
    /// A rule with a domain is compared with the names, and not with the address. Nothing is counted.
    pub(crate) fn denied_names(&self, to: &Destination<'_>, names: &Pattern, now: Instant) -> Part {
        let part = |entry: &EgressEntry| match &entry.rule.to.target {
            Target::Name(own) if entry.rule.to.is_for(to.protocol, to.port) => own.part_of(names),
            Target::Any | Target::Net(_) if entry.denies(to, now) => Part::All,
            Target::Any | Target::Net(_) | Target::Name(_) => Part::None,
        };
        self.entries.iter().map(part).max().unwrap_or(Part::None)
    }

    /// Returns the rules that match TCP connections to some port of the host `name`.
    pub(crate) fn rules_for_name(&self, name: &HostName) -> impl Iterator<Item = &EgressRule> {
        self.rules().filter(|rule| {
            let is_for_tcp = rule
                .to
                .protocol
                .is_none_or(|protocol| protocol == EgressProtocol::Tcp);
            let is_for_name = match &rule.to.target {
                Target::Any => true,
                Target::Net(_) => false,
                Target::Name(pattern) => pattern.matches(name.as_str()),
            };
            is_for_tcp && is_for_name
        })
    }
}

impl DestinationSelection {
    /// Returns true if `to` is selected, under the same conditions as by a deny rule.
    #[must_use]
    pub fn contains(&self, to: &Destination<'_>, now: Instant) -> bool {
        self.0.iter().any(|entry| entry.denies(to, now))
    }
}
