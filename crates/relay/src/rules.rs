//! The rules that a relay has, and how they change.

use std::collections::HashSet;
use std::str::FromStr;

use crate::rule::{Input, Rule, RuleError};

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

/// What is to be changed: all of it, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Inputs of rules that go.
    pub remove: Vec<Input>,
    /// Rules that come once those are gone.
    pub add: Vec<Rule>,
}

/// Why a change was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// There is no rule to remove.
    #[error("no rule for '{0}'")]
    Unknown(Input),
    /// A rule to add has the input of one that stays.
    #[error(transparent)]
    Conflict(#[from] Conflict),
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

    /// These rules after a change. Adding one that is there changes nothing.
    ///
    /// # Errors
    /// It cannot be done as a whole.
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

    /// These rules and others. Of several with one input the first one counts.
    #[must_use]
    pub fn union(&self, others: &[Rule]) -> Self {
        let mut inputs: HashSet<&Input> = self.0.iter().map(|rule| &rule.input).collect();
        let others = others.iter().filter(|rule| inputs.insert(&rule.input));
        Self(self.0.iter().chain(others).cloned().collect())
    }

    /// The rules that `other` does not have.
    pub fn without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a Rule> {
        let others: HashSet<&Rule> = other.0.iter().collect();
        self.0.iter().filter(move |rule| !others.contains(rule))
    }

    /// Every rule.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }
}

impl Change {
    /// Reads rules to remove, each as a whole or as what is left of its arrow, and rules to add.
    ///
    /// # Errors
    /// The first text that is neither, and why.
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
    fn one_rule_for_one_input() {
        let mut rules = three();
        let error = rules.add(rule("a 239.1.1.1:1 -> c 239.9.9.9:9")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "'a 239.1.1.1:1' is in another rule: a 239.1.1.1:1 -> b 239.1.1.1:1"
        );
        assert_eq!(rules, three());
    }

    #[test]
    fn a_change_is_done_as_a_whole() {
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
    fn what_has_changed_can_be_told() {
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
    fn of_several_with_one_input_the_first_one_stays() {
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
    fn a_change_that_cannot_be_is_refused() {
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
            "'a 239.1.1.1': '239.1.1.1' is not ADDRESS:PORT ([ADDRESS]:PORT for IPv6)"
        );
    }

    #[test]
    fn a_rule_that_is_there_can_be_added() {
        let change = Change::parse(&[], &["a 239.1.1.1:1 -> b 239.1.1.1:1"]).unwrap();
        assert_eq!(three().changed(&change), Ok(three()));
    }
}
