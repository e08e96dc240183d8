//! Selection of flows by the text of an egress rule.

use super::{Action, Destination, Egress, EgressEntry, EgressRule, Instant, Match, MatchTally, Target};

/// Destinations that the text of an egress rule names. Those of a domain are the addresses that rules with the same domain
/// have learned.
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
        DestinationSelection(match what.target {
            Target::Any | Target::Net(_) => vec![entry(None)],
            Target::Name(_) => with_name.map(|other| entry(other.name.clone())).collect(),
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
