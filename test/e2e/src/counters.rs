//! Counters of the program.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Option of `pontoon run` that makes it log its counters at its end.
pub(crate) const LOGGED: &str = "-v";

/// Counts since its start, but those that are zero.
pub(crate) struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// From the file that its standard error went to, once it has ended.
    pub(crate) fn read(talk: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(talk).context("it logged nothing")?;
        eprint!("{text}");
        let counts: BTreeMap<String, u64> = text
            .lines()
            .filter_map(|line| line.strip_prefix("debug: ")?.split_once(' '))
            .filter_map(|(name, count)| Some((name.to_string(), count.parse().ok()?)))
            .collect();
        // Without this a log without counters would count nothing.
        ensure!(counts.contains_key("frames_up"), "it did not log its counters");
        Ok(Self(counts))
    }

    /// The counter of that name.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Fails where the counter is another number.
    pub(crate) fn expect(&self, name: &str, wanted: u64) -> Result<()> {
        let count = self.count(name);
        ensure!(count == wanted, "{name} is {count} instead of {wanted}");
        Ok(())
    }
}
