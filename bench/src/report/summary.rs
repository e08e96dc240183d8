//! The samples of a report, grouped by cell and stack and summarised.

use std::collections::BTreeMap;

use crate::schema::{
    BenchmarkReport, Better, Cell, METRICS, Metric, Sample, SampleOutcome, StackDescription, StackRole,
};
use crate::stats::{Difference, Ratio, Spread};

use super::{label, number, outcome};

/// A report as groups: all cells with samples, and all stacks that were installed.
pub(super) struct Summary<'a> {
    pub(super) report: &'a BenchmarkReport,
    pub(super) stacks: Vec<&'a StackDescription>,
    pub(super) cells: Vec<CellSummary<'a>>,
}

/// The samples of one cell, grouped by stack.
pub(super) struct CellSummary<'a> {
    pub(super) cell: &'a Cell,
    pub(super) metric: Metric,
    /// The stack to which the others are compared: veth if it was measured in this cell, otherwise direct.
    pub(super) baseline: Option<&'a StackDescription>,
    /// One entry for each stack of the summary, in the order of the stacks.
    pub(super) entries: Vec<StackSummary<'a>>,
}

/// The samples of one stack in one cell, and their ratios to other stacks.
pub(super) struct StackSummary<'a> {
    pub(super) stack: &'a StackDescription,
    /// Samples of the stack in the cell, with any outcome.
    pub(super) samples: Vec<&'a Sample>,
    pub(super) spread: Option<Spread>,
    /// The ratio of this stack's figure to the baseline's.
    pub(super) to_baseline: Option<Ratio>,
    /// The ratio of this stack's figure to that of the best stack of another project; only for pontoon.
    pub(super) to_peer: Option<(&'a StackDescription, Ratio)>,
}

/// The result of a comparison of two figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Better,
    Worse,
    /// The figures differ significantly, in a metric of which neither direction is better.
    Different,
    NotSignificant,
    TooFew,
}

impl Verdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Different => "different",
            Self::NotSignificant => "not significant",
            Self::TooFew => "too few rounds",
        }
    }
}

impl<'a> Summary<'a> {
    pub(super) fn of(report: &'a BenchmarkReport) -> Self {
        let stacks: Vec<_> = report
            .stacks
            .iter()
            .filter(|stack| stack.missing.is_none())
            .collect();
        let mut samples: BTreeMap<(&str, &str), Vec<&Sample>> = BTreeMap::new();
        for sample in &report.samples {
            samples
                .entry((&sample.cell, &sample.stack))
                .or_default()
                .push(sample);
        }
        let cell = |cell: &'a Cell| {
            let of = |stack: &&'a StackDescription| {
                samples.remove(&(&*cell.name, &*stack.name)).unwrap_or_default()
            };
            let taken: Vec<_> = stacks.iter().map(of).collect();
            let was_asked = taken.iter().any(|samples| !samples.is_empty());
            was_asked.then(|| CellSummary::of(cell, &stacks, taken))
        };
        let cells = report.cells.iter().filter_map(cell).collect();
        Self {
            report,
            stacks,
            cells,
        }
    }

    /// Returns the names of the scenarios that have cells, in the order of the cells.
    pub(super) fn scenarios(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> = Vec::new();
        for CellSummary { cell, .. } in &self.cells {
            if !names.contains(&&*cell.scenario) {
                names.push(&cell.scenario);
            }
        }
        names
    }

    /// Returns one cell of each scenario, for a table that fits on a screen.
    pub(super) fn headlines(&self) -> Vec<&CellSummary<'a>> {
        let of = |scenario| {
            let chosen = self
                .cells_of(scenario)
                .find(|of| label::is_headline(&of.cell.name));
            chosen.or_else(|| self.cells_of(scenario).next())
        };
        self.scenarios().into_iter().filter_map(of).collect()
    }

    pub(super) fn cells_of(&self, scenario: &str) -> impl Iterator<Item = &CellSummary<'a>> {
        self.cells
            .iter()
            .filter(move |cell| cell.cell.scenario == scenario)
    }
}

impl<'a> CellSummary<'a> {
    fn of(cell: &'a Cell, stacks: &[&'a StackDescription], taken: Vec<Vec<&'a Sample>>) -> Self {
        let mut entries: Vec<_> = stacks
            .iter()
            .zip(taken)
            .map(|(&stack, samples)| StackSummary {
                stack,
                spread: Spread::of(
                    &values(&samples, &cell.figure)
                        .map(|(_, value)| value)
                        .collect::<Vec<_>>(),
                ),
                samples,
                to_baseline: None,
                to_peer: None,
            })
            .collect();
        let metric = metric(&cell.figure);
        let baseline = baseline(&entries);
        let peer = best_peer(&entries, metric);
        let ratio = |of: &StackSummary<'a>, to: Option<usize>| {
            let to = to
                .map(|index| &entries[index])
                .filter(|to| to.stack != of.stack)?;
            Some((to.stack, paired(of, to, &cell.figure)?))
        };
        let ratios: Vec<_> = entries
            .iter()
            .map(|entry| {
                let to_peer = ratio(entry, peer).filter(|_| entry.stack.role == StackRole::Pontoon);
                (ratio(entry, baseline).map(|(_, ratio)| ratio), to_peer)
            })
            .collect();
        for (entry, (to_baseline, to_peer)) in entries.iter_mut().zip(ratios) {
            (entry.to_baseline, entry.to_peer) = (to_baseline, to_peer);
        }
        let baseline = baseline.map(|index| entries[index].stack);
        Self {
            cell,
            metric,
            baseline,
            entries,
        }
    }

    pub(super) fn verdict(&self, ratio: &Ratio) -> Verdict {
        verdict(ratio, self.metric)
    }

    /// Returns the names of the metrics besides the figure that a sample of this cell has, in the order of
    /// [`METRICS`].
    pub(super) fn other_metrics(&self) -> Vec<&'static str> {
        let has = |name: &str| self.entries.iter().any(|entry| entry.spread_of(name).is_some());
        let names = METRICS.iter().map(|metric| metric.name);
        names
            .filter(|&name| name != self.cell.figure && has(name))
            .collect()
    }

    /// Returns the lines of a stack's figure in a table: the median with the extremes, the ratios with their
    /// intervals, or the reason why there is no figure.
    pub(super) fn lines(&self, entry: &StackSummary<'_>) -> Vec<String> {
        let Some(spread) = entry.spread else {
            return vec![outcome::last(entry)];
        };
        let mut lines = vec![self::spread(&spread)];
        if let (Some(ratio), Some(baseline)) = (&entry.to_baseline, self.baseline) {
            lines.push(self.ratio(ratio, &baseline.name));
        }
        if let Some((peer, ratio)) = &entry.to_peer {
            lines.push(self.ratio(ratio, &peer.name));
        }
        lines.extend(outcome::all(entry));
        lines
    }

    /// Returns a stack's figure in the headline table: its median, or the reason why there is no figure.
    pub(super) fn headline(&self, entry: &StackSummary<'_>) -> String {
        let Some(spread) = entry.spread else {
            return outcome::last(entry);
        };
        let equal = entry
            .to_baseline
            .is_some_and(|ratio| self.verdict(&ratio) == Verdict::NotSignificant);
        let mark = if equal { "≈ " } else { "" };
        format!("{mark}{}", number::figure(spread.median))
    }

    fn ratio(&self, ratio: &Ratio, to: &str) -> String {
        let interval = ratio
            .interval
            .map(|interval| format!(" ({})", number::factors(interval)));
        let (factor, interval) = (number::factor(ratio.median), interval.unwrap_or_default());
        format!("{factor} × {to}{interval}, {}", self.verdict(ratio).word())
    }
}

impl StackSummary<'_> {
    pub(super) fn is_measured(&self) -> bool {
        self.spread.is_some()
    }

    /// Returns the spread of a metric over the measured samples, or `None` if no sample has it.
    pub(super) fn spread_of(&self, metric: &str) -> Option<Spread> {
        Spread::of(
            &values(&self.samples, metric)
                .map(|(_, value)| value)
                .collect::<Vec<_>>(),
        )
    }
}

/// Formats the median with the extremes in brackets, or alone if all values are equal.
pub(super) fn spread(spread: &Spread) -> String {
    let median = number::figure(spread.median);
    if spread.min == spread.max {
        return median;
    }
    let (min, max) = (number::figure(spread.min), number::figure(spread.max));
    format!("{median} [{min}-{max}]")
}

pub(super) fn verdict(ratio: &Ratio, metric: Metric) -> Verdict {
    match (ratio.difference(), metric.better) {
        (Difference::TooFew, _) => Verdict::TooFew,
        (Difference::NotSignificant, _) => Verdict::NotSignificant,
        (_, None) => Verdict::Different,
        (Difference::Larger, Some(Better::Higher)) | (Difference::Smaller, Some(Better::Lower)) => {
            Verdict::Better
        }
        (Difference::Larger, Some(Better::Lower)) | (Difference::Smaller, Some(Better::Higher)) => {
            Verdict::Worse
        }
    }
}

/// Returns the metric of this name. A name that only newer versions know gets no unit.
pub(super) fn metric(name: &str) -> Metric {
    Metric::of(name).copied().unwrap_or(Metric {
        name: "?",
        unit: "?",
        better: None,
        label: "?",
        meaning: "a metric that this program does not know",
    })
}

pub(super) fn measured<'a>(
    report: &'a BenchmarkReport,
    cell: &'a str,
    stack: &'a str,
) -> impl Iterator<Item = &'a Sample> {
    let samples = report.samples.iter();
    samples.filter(move |sample| {
        sample.cell == cell && sample.stack == stack && sample.outcome == SampleOutcome::Measured
    })
}

/// Returns pairs of round and value of a metric, from the measured samples.
pub(super) fn values<'a>(samples: &'a [&Sample], metric: &'a str) -> impl Iterator<Item = (u32, f64)> + 'a {
    let measured = samples
        .iter()
        .filter(|sample| sample.outcome == SampleOutcome::Measured);
    measured.filter_map(move |sample| Some((sample.round, *sample.values.get(metric)?)))
}

/// Returns the ratio of two stacks by the values of the same rounds.
pub(super) fn paired(of: &StackSummary<'_>, to: &StackSummary<'_>, metric: &str) -> Option<Ratio> {
    let to: BTreeMap<u32, f64> = values(&to.samples, metric).collect();
    Ratio::paired(values(&of.samples, metric).filter_map(|(round, value)| Some((value, *to.get(&round)?))))
}

fn baseline(entries: &[StackSummary<'_>]) -> Option<usize> {
    let kernel = |entry: &StackSummary<'_>| entry.stack.role == StackRole::Kernel && entry.is_measured();
    let veth = entries
        .iter()
        .position(|entry| kernel(entry) && entry.stack.name == "veth");
    veth.or_else(|| entries.iter().position(kernel))
}

fn best_peer(entries: &[StackSummary<'_>], metric: Metric) -> Option<usize> {
    let better = metric.better?;
    let merit = |&(_, median): &(usize, f64)| match better {
        Better::Higher => median,
        Better::Lower => -median,
    };
    let peers = entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.stack.role == StackRole::Peer);
    let medians = peers.filter_map(|(index, entry)| Some((index, entry.spread?.median)));
    let best = medians.max_by(|left, right| merit(left).total_cmp(&merit(right)));
    best.map(|(index, _)| index)
}
