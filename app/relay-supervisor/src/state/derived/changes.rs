//! Changes of derived rules, of which each derivation makes a limited number.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pontoon_relay::Rule;
use pontoon_relay::rule::{Input, Output};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::counter_rows;

/// Maximum number of rules that one derivation adds, replaces or removes. A change costs 0.4 ms of CPU time, most of it for the
/// kernel's membership of the group (Linux 6.18, 2026-11-28). Hosts behind one interface can change thousands of memberships,
/// and the first change of another interface waits for the pause after a derivation.
pub(in crate::state) const MAX_CHANGES: usize = 128;

/// Changes that a derivation has found and not made, each with the number of the derivation that has found it first.
#[derive(Debug, Default)]
pub(in crate::state) struct PendingChanges {
    /// Number of derivations so far.
    number: u64,
    found: FxHashMap<Input, u64>,
    /// Interface of the last change that was made.
    last: String,
}

/// Change of the rule with one input: the rule before, and the rule that is wanted.
struct Change<'a> {
    number: u64,
    input: &'a Input,
    before: Option<&'a Rule>,
    wanted: Option<&'a Rule>,
}

impl PendingChanges {
    /// Returns true if no change waits for the next derivation.
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns the rules `current` after at most [`MAX_CHANGES`] changes towards `wanted`; they need at most `rows` rows of
    /// counters, as `wanted` does. The changes are taken in turns from the output interfaces, the longest known first. Of
    /// rules with the same input, only the first is considered. The first derivation makes all changes: no host has reported
    /// a membership yet.
    pub(super) fn step(&mut self, current: &[Rule], wanted: Vec<Rule>, rows: usize) -> Vec<Rule> {
        let before = by_input(current);
        let after = by_input(&wanted);
        let removed = first_of_inputs(current).filter(|(input, _)| !after.contains_key(input));
        let inputs = first_of_inputs(&wanted).chain(removed).map(|(input, _)| input);
        let changed: Vec<_> = inputs
            .map(|input| (input, before.get(input).copied(), after.get(input).copied()))
            .filter(|(_, before, wanted)| before != wanted)
            .collect();
        self.number += 1;
        if changed.len() <= MAX_CHANGES || self.number == 1 {
            self.found.clear();
            return wanted;
        }
        let mut changes: Vec<Change<'_>> = changed
            .into_iter()
            .map(|(input, before, wanted)| Change {
                number: self.found.get(input).copied().unwrap_or(self.number),
                input,
                before,
                wanted,
            })
            .collect();
        changes.sort_by_key(|change| change.number);
        let made = self.select(&changes, counter_rows::needed(before.values().copied()), rows);

        let mut result: Vec<Rule> = Vec::with_capacity(current.len().max(wanted.len()));
        for (input, rule) in first_of_inputs(&wanted) {
            let rule = match made.contains(input) {
                true => Some(rule),
                false => before.get(input).copied(),
            };
            result.extend(rule.cloned());
        }
        let kept =
            first_of_inputs(current).filter(|(input, _)| !after.contains_key(input) && !made.contains(input));
        result.extend(kept.map(|(_, rule)| rule.clone()));
        let left = changes.iter().filter(|change| !made.contains(change.input));
        self.found = left.map(|change| (change.input.clone(), change.number)).collect();
        result
    }

    /// Returns the inputs of the changes to make. `changes` are sorted by their age; `used` is the number of rows that the rules
    /// need before.
    fn select<'a>(&mut self, changes: &[Change<'a>], mut used: usize, rows: usize) -> FxHashSet<&'a Input> {
        let mut of_interfaces: BTreeMap<&str, VecDeque<&Change<'a>>> = BTreeMap::new();
        for change in changes {
            for interface in change.interfaces() {
                of_interfaces.entry(interface).or_default().push_back(change);
            }
        }
        let mut made = FxHashSet::default();
        let (mut first, second): (Vec<_>, Vec<_>) = of_interfaces
            .into_iter()
            .partition(|(interface, _)| **interface > *self.last);
        first.extend(second);
        while !first.is_empty() && made.len() < MAX_CHANGES {
            first.retain_mut(|(interface, waiting)| {
                while let Some(change) = waiting.pop_front() {
                    let would_use =
                        used - counter_rows::needed(change.before) + counter_rows::needed(change.wanted);
                    // A rule that has no room waits until others have been removed. Another interface may have had this change.
                    if made.len() < MAX_CHANGES && would_use <= rows && made.insert(change.input) {
                        used = would_use;
                        (*interface).clone_into(&mut self.last);
                        return true;
                    }
                }
                false
            });
        }
        made
    }
}

impl<'a> Change<'a> {
    /// Returns the names of the interfaces for which the rule is changed: those of outputs that only one of the rules has, or
    /// of all outputs.
    fn interfaces(&self) -> BTreeSet<&'a str> {
        let outputs = |rule: Option<&'a Rule>| rule.map_or(&[][..], |rule| &rule.outputs[..]);
        let (before, wanted) = (outputs(self.before), outputs(self.wanted));
        let added = wanted.iter().filter(|output| !before.contains(output));
        let removed = before.iter().filter(|output| !wanted.contains(output));
        let names = |output: &'a Output| output.interface.as_str();
        let of_changed: BTreeSet<&str> = added.chain(removed).map(names).collect();
        match of_changed.is_empty() {
            true => wanted.iter().map(names).collect(),
            false => of_changed,
        }
    }
}

/// Returns the rules by their inputs; of rules with the same input, the first.
fn by_input(rules: &[Rule]) -> FxHashMap<&Input, &Rule> {
    let mut all = FxHashMap::default();
    for rule in rules {
        all.entry(&rule.input).or_insert(rule);
    }
    all
}

/// Returns the rules in order, without those whose input an earlier rule has.
fn first_of_inputs(rules: &[Rule]) -> impl Iterator<Item = (&Input, &Rule)> {
    let mut seen = FxHashSet::default();
    let rules = rules.iter().map(|rule| (&rule.input, rule));
    rules.filter(move |(input, _)| seen.insert(*input))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: usize = 100_000;

    /// Returns the state after the first derivation.
    fn later() -> PendingChanges {
        PendingChanges {
            number: 1,
            ..PendingChanges::default()
        }
    }

    fn rule(group: usize, output: &str) -> Rule {
        let text = format!("up 239.1.{}.{}:5000 -> {output} *:*", group / 256, group % 256);
        text.parse().unwrap()
    }

    fn many(groups: std::ops::Range<usize>, output: &str) -> Vec<Rule> {
        groups.map(|group| rule(group, output)).collect()
    }

    fn sorted(mut rules: Vec<Rule>) -> Vec<Rule> {
        rules.sort_by_cached_key(ToString::to_string);
        rules
    }

    #[test]
    fn few_changes_are_made_at_once() {
        let mut pending = later();
        let wanted = many(0..MAX_CHANGES, "a");
        assert_eq!(pending.step(&[], wanted.clone(), ROWS), wanted);
        assert!(pending.is_empty());
    }

    #[test]
    fn changes_of_an_interface_do_not_wait_for_those_of_another() {
        let mut pending = later();
        let mut current = many(0..4000, "a");
        for nth in 0..20 {
            // Hosts of one interface replace all groups again and again; a host of the other one joins a group.
            let mut wanted = many((nth % 2) * 5000..(nth % 2) * 5000 + 4000, "a");
            wanted.push(rule(20_000 + nth, "b"));
            current = pending.step(&current, wanted.clone(), ROWS);
            assert!(current.contains(wanted.last().unwrap()), "{nth}");
        }
    }

    #[test]
    fn group_that_another_interface_waits_for_is_installed_at_once() {
        let mut pending = later();
        let wanted = many(0..4000, "a");
        let mut current = pending.step(&[], wanted.clone(), ROWS);
        for group in 3900..3910 {
            assert!(!current.contains(&wanted[group]));
            // A host of the interface b joins a group for which a waits.
            let mut wanted = wanted.clone();
            wanted[group] = rule(group, "a *:*, b");
            current = pending.step(&current, wanted.clone(), ROWS);
            assert!(current.contains(&wanted[group]), "{group}");
        }
    }

    #[test]
    fn more_interfaces_than_changes_take_turns() {
        let mut pending = later();
        let (mut current, mut served) = (Vec::new(), BTreeSet::new());
        for nth in 0..8 {
            // Each interface replaces its group continually.
            let of_interface = |number: usize| rule(number * 8 + nth, &format!("i{number}"));
            let wanted = (0..2 * MAX_CHANGES).map(of_interface).collect();
            current = pending.step(&current, wanted, ROWS);
            served.extend(current.iter().map(|rule| rule.outputs[0].interface.clone()));
        }
        assert_eq!(served.len(), 2 * MAX_CHANGES);
    }

    #[test]
    fn first_derivation_makes_all_changes() {
        let wanted = many(0..5000, "a");
        assert_eq!(PendingChanges::default().step(&[], wanted.clone(), ROWS), wanted);
    }

    #[test]
    fn changes_of_an_interface_are_made_in_the_order_in_which_they_were_found() {
        let mut pending = later();
        let mut current = Vec::new();
        let (first, late) = (many(0..MAX_CHANGES, "a"), rule(60_000, "a"));
        let mut wanted = many(0..4 * MAX_CHANGES, "a");
        wanted.push(late.clone());
        let mut steps = 0;
        while !current.contains(&late) {
            current = pending.step(&current, wanted.clone(), ROWS);
            steps += 1;
            // The groups that were joined first are left and joined again.
            current.retain(|rule| !first.contains(rule));
            assert!(steps <= 5);
        }
        assert_eq!(steps, 5);
    }

    #[test]
    fn all_changes_are_made_in_the_end_within_the_rows() {
        let mut pending = later();
        let before = many(0..3000, "a");
        let mut wanted = many(6000..9000, "b");
        wanted.extend(many(2900..3000, "c"));
        let rows = counter_rows::needed(&wanted);
        let mut current = before;
        let mut steps = 0;
        while sorted(current.clone()) != sorted(wanted.clone()) {
            current = pending.step(&current, wanted.clone(), rows);
            assert!(counter_rows::needed(&current) <= rows.max(9000));
            steps += 1;
            assert!(steps < 80, "{} rules", current.len());
        }
        assert!(pending.is_empty());
    }

    #[test]
    fn later_rules_with_the_same_input_are_ignored() {
        let mut pending = later();
        let mut wanted = many(0..1000, "a");
        wanted.extend(many(0..1000, "b"));
        let mut current = Vec::new();
        for _ in 0..=1000 / MAX_CHANGES {
            current = pending.step(&current, wanted.clone(), ROWS);
        }
        assert_eq!(
            sorted(many(0..1000, "a")),
            sorted(first_of_inputs(&current).map(|(_, rule)| rule.clone()).collect())
        );
        assert!(pending.is_empty());
    }
}
