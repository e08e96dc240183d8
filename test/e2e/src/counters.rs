//! The counters that the program logs at its exit.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Option of `pontoon run` by which it logs its counters at its exit.
pub(crate) const LOGGED: &str = "-v";

/// Counters by name, except those that are zero.
pub(crate) struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Reads the counters from the file with the program's standard error, after the program has exited.
    pub(crate) fn read(talk: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(talk).context("cannot read the log of the program")?;
        eprint!("{text}");
        let counts: BTreeMap<String, u64> = text
            .lines()
            .filter_map(|line| line.strip_prefix("debug: ")?.split_once(' '))
            .filter_map(|(name, count)| Some((name.to_string(), count.parse().ok()?)))
            .collect();
        // Without this check a log without counters would mean that all counters are zero.
        ensure!(!counts.is_empty(), "it did not log its counters");
        Ok(Self(counts))
    }

    /// Returns the value of a counter.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Fails if a counter does not have the value `wanted`.
    pub(crate) fn expect(&self, name: &str, wanted: u64) -> Result<()> {
        let count = self.count(name);
        ensure!(count == wanted, "{name} is {count} instead of {wanted}");
        Ok(())
    }
}
