//! What differs between the stacks of a cell besides the stack.

use std::collections::{BTreeMap, BTreeSet};

use super::list;
use crate::report::summary::{CellSummary, Entry};
use crate::schema::Conditions;

pub(super) fn of_cells(cells: &[&CellSummary<'_>]) -> Vec<String> {
    let mut notes = differing(cells, "congestion control (client, server)", |at| {
        at.congestion_control
            .as_ref()
            .map(|[client, server]| format!("{client}, {server}"))
    });
    notes.extend(differing(cells, "the guest's MTU", |at| {
        at.mtu.map(|mtu| mtu.to_string())
    }));
    notes.extend(differing(cells, "the interface's queue length", |at| {
        at.queue_length.map(|length| length.to_string())
    }));
    notes
}

/// One note per set of differences, with the cells that share it.
fn differing(
    cells: &[&CellSummary<'_>],
    what: &str,
    of: impl Fn(&Conditions) -> Option<String>,
) -> Vec<String> {
    let mut by_difference: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for CellSummary { cell, entries, .. } in cells {
        let mut stacks: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entry in entries {
            for value in seen(entry, &of) {
                stacks.entry(value).or_default().push(entry.stack.name.clone());
            }
        }
        if stacks.len() > 1 {
            let parts = stacks
                .iter()
                .map(|(value, names)| format!("{} with {value}", list(names)));
            let difference = parts.collect::<Vec<_>>().join("; ");
            by_difference
                .entry(difference)
                .or_default()
                .push(format!("`{}`", cell.name));
        }
    }
    let note = |(difference, names): (String, Vec<String>)| {
        format!("{}: {what} differs: {difference}.", list(&names))
    };
    by_difference.into_iter().map(note).collect()
}

fn seen(entry: &Entry<'_>, of: &impl Fn(&Conditions) -> Option<String>) -> BTreeSet<String> {
    entry
        .samples
        .iter()
        .filter_map(|sample| of(&sample.conditions))
        .collect()
}
