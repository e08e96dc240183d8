//! What can be asked of a running relay, and the rules that it has.

use serde::Serialize;

use crate::counters::Stats;
use crate::rule::Rule;

/// Rules in the order in which they came, no two with the same input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

/// Another rule has the same input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{input}' is in another rule: {other}")]
pub struct Conflict {
    input: String,
    other: String,
}

impl Rules {
    /// Adds a rule. Repeating one is a conflict, too.
    ///
    /// # Errors
    /// Another rule has its input; nothing changes.
    pub fn add(&mut self, rule: Rule) -> Result<(), Conflict> {
        if let Some(other) = self.0.iter().find(|other| other.input == rule.input) {
            return Err(Conflict {
                input: rule.input.to_string(),
                other: other.to_string(),
            });
        }
        self.0.push(rule);
        Ok(())
    }

    /// Removes the rule whose input is that of `rule`.
    #[must_use]
    pub fn remove(&mut self, rule: &Rule) -> Option<Rule> {
        let at = self.0.iter().position(|other| other.input == rule.input)?;
        Some(self.0.remove(at))
    }

    /// Every rule.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Adds a rule.
    Add(Rule),
    /// Removes the rule with this one's input; its outputs do not matter.
    Remove(Rule),
    /// Which rules are there.
    List,
    /// What was counted.
    Stats,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    /// It was done.
    Done,
    /// It was refused, and why; nothing changed.
    Refused(String),
    /// The rules, as text.
    Rules(Vec<String>),
    /// What was counted.
    Stats(Stats),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rule_for_one_input() {
        let rule = |text: &str| text.parse::<Rule>().unwrap();
        let mut rules = Rules::default();
        rules.add(rule("a 239.1.1.1:1 -> b 239.1.1.1:1")).unwrap();
        rules
            .add(rule("a 239.1.1.1:1 from 10.0.0.1 -> b 239.1.1.1:1"))
            .unwrap();
        rules.add(rule("a 239.1.1.1:* -> b 239.1.1.1:1")).unwrap();
        let before = rules.clone();
        let error = rules.add(rule("a 239.1.1.1:1 -> c 239.9.9.9:9")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "'a 239.1.1.1:1' is in another rule: a 239.1.1.1:1 -> b 239.1.1.1:1"
        );
        assert_eq!(rules, before);

        let gone = rules.remove(&rule("a 239.1.1.1:1 -> x 239.9.9.9:9"));
        assert_eq!(gone, Some(rule("a 239.1.1.1:1 -> b 239.1.1.1:1")));
        assert_eq!(rules.iter().count(), 2);
        assert_eq!(rules.remove(&rule("a 239.1.1.1:1 -> x 239.9.9.9:9")), None);
    }
}
