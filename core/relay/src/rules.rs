//! The list of a relay's rules, and changes to it.

use std::collections::HashSet;
use std::str::FromStr;

use crate::rule::{Input, Rule, RuleError};

/// The rules of a relay in the order in which they were added. Their inputs are unique.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

/// Error: a rule has the same input as another rule of the relay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{input}' is in another rule: {other}")]
pub struct Conflict {
    input: String,
    other: String,
}

/// A change of a relay's rules, which is applied as a whole or refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Inputs of the rules to remove.
    pub remove: Vec<Input>,
    /// Rules to add after the removal.
    pub add: Vec<Rule>,
}

/// The reason why a change of the rules is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// There is no rule with an input that is to be removed.
    #[error("no rule for '{0}'")]
    Unknown(Input),
    /// A rule to add has the same input as a rule that is not removed.
    #[error(transparent)]
    Conflict(#[from] Conflict),
}

impl Rules {
    /// Appends a rule. It is refused even if it is equal to an existing rule.
    ///
    /// # Errors
    /// Another rule has the same input; nothing changes.
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

    /// Returns the rules after a change. Adding a rule that exists already has no effect.
    ///
    /// # Errors
    /// A rule to remove does not exist, or the input of a rule to add is not unique.
    pub fn changed(&self, change: &Change) -> Result<Self, ChangeError> {
        let mut rules = self.clone();
        for input in &change.remove {
            let at = rules.0.iter().position(|rule| rule.input == *input);
            rules
                .0
                .remove(at.ok_or_else(|| ChangeError::Unknown(input.clone()))?);
        }
        for rule in &change.add {
            if !rules.0.contains(rule) {
                rules.add(rule.clone())?;
            }
        }
        Ok(rules)
    }

    /// Returns these rules and those of `others`. Of several rules with the same input the first one is kept.
    #[must_use]
    pub fn union(&self, others: &[Rule]) -> Self {
        let mut inputs: HashSet<&Input> = self.0.iter().map(|rule| &rule.input).collect();
        let others = others.iter().filter(|rule| inputs.insert(&rule.input));
        Self(self.0.iter().chain(others).cloned().collect())
    }

    /// Returns the rules of this list that `other` does not contain.
    pub fn without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a Rule> {
        let others: HashSet<&Rule> = other.0.iter().collect();
        self.0.iter().filter(move |rule| !others.contains(rule))
    }

    /// Returns all rules in order.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }
}

impl Change {
    /// Parses the rules to remove, whose arrow and outputs may be omitted, and the rules to add.
    ///
    /// # Errors
    /// The first invalid text, and the reason why it is invalid.
    pub fn parse<T: AsRef<str>>(remove: &[T], add: &[T]) -> Result<Self, String> {
        fn each<T: AsRef<str>, V: FromStr<Err = RuleError>>(
            texts: &[T],
            part: fn(&str) -> &str,
        ) -> Result<Vec<V>, String> {
            let read = |text: &T| {
                let text = text.as_ref();
                part(text).parse().map_err(|error| format!("'{text}': {error}"))
            };
            texts.iter().map(read).collect()
        }
        Ok(Self {
            remove: each(remove, |text| text.split("->").next().unwrap_or(text))?,
            add: each(add, |text| text)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    fn three() -> Rules {
        let mut rules = Rules::default();
        for text in [
            "a 239.1.1.1:1 -> b 239.1.1.1:1",
            "a 239.1.1.1:1 from 10.0.0.1 -> b 239.1.1.1:1",
            "a 239.1.1.1:* -> b 239.1.1.1:1",
        ] {
            rules.add(rule(text)).unwrap();
        }
        rules
    }

    #[test]
    fn add_refuses_a_second_rule_with_the_same_input() {
        let mut rules = three();
        let error = rules.add(rule("a 239.1.1.1:1 -> c 239.9.9.9:9")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "'a 239.1.1.1:1' is in another rule: a 239.1.1.1:1 -> b 239.1.1.1:1"
        );
        assert_eq!(rules, three());
    }

    #[test]
    fn change_is_applied_as_a_whole() {
        let change = Change::parse(
            &["a 239.1.1.1:1 -> x 239.9.9.9:9", "a 239.1.1.1:*"],
            &["a 239.1.1.1:1 -> c 239.1.1.1:1"],
        );
        let rules = three().changed(&change.unwrap()).unwrap();
        let shown: Vec<_> = rules.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "a 239.1.1.1:1 from 10.0.0.1 -> b 239.1.1.1:1",
                "a 239.1.1.1:1 -> c 239.1.1.1:1"
            ]
        );
    }

    #[test]
    fn without_returns_the_difference() {
        let change = Change::parse(&["a 239.1.1.1:*"], &["a 239.1.1.9:1 -> c 239.1.1.1:1"]);
        let (before, after) = (three(), three().changed(&change.unwrap()).unwrap());
        let shown = |rules: Vec<&Rule>| -> Vec<_> { rules.iter().map(ToString::to_string).collect() };
        assert_eq!(
            shown(after.without(&before).collect()),
            ["a 239.1.1.9:1 -> c 239.1.1.1:1"]
        );
        assert_eq!(
            shown(before.without(&after).collect()),
            ["a 239.1.1.1:* -> b 239.1.1.1:1"]
        );
    }

    #[test]
    fn union_keeps_the_first_rule_of_an_input() {
        let others = [
            "a 239.1.1.1:* -> c *:*",
            "a 239.1.1.9:* -> c *:*",
            "a 239.1.1.9:* -> d *:*",
        ]
        .map(rule);
        let both = three().union(&others);
        let shown: Vec<_> = both.without(&three()).map(ToString::to_string).collect();
        assert_eq!(shown, ["a 239.1.1.9:* -> c *:*"]);
        assert_eq!(both.iter().count(), 4);
    }

    #[test]
    fn impossible_change_is_refused() {
        for (remove, add, why) in [
            (
                "a 239.1.1.2:1",
                "a 239.1.1.3:1 -> b *:*",
                "no rule for 'a 239.1.1.2:1'",
            ),
            (
                "a 239.1.1.1:*",
                "a 239.1.1.1:1 -> c *:*",
                "'a 239.1.1.1:1' is in another rule: a 239.1.1.1:1 -> b 239.1.1.1:1",
            ),
        ] {
            let change = Change::parse(&[remove], &[add]).unwrap();
            assert_eq!(three().changed(&change).unwrap_err().to_string(), why);
        }
        assert_eq!(
            Change::parse(&["a 239.1.1.1"], &[]).unwrap_err(),
            "'a 239.1.1.1': invalid endpoint '239.1.1.1' (ADDRESS:PORT; [ADDRESS]:PORT for IPv6)"
        );
    }

    #[test]
    fn adding_an_existing_rule_has_no_effect() {
        let change = Change::parse(&[], &["a 239.1.1.1:1 -> b 239.1.1.1:1"]).unwrap();
        assert_eq!(three().changed(&change), Ok(three()));
    }
}
