//! The comparison of two reports, such as of two revisions or two machines, as Markdown.
//!
//! The samples of two runs are not pairs: the machine's state in the third round of one run is unrelated to that of
//! the other. So each figure's ratio has the interval of two independent samples ([`Ratio::unpaired`]). A difference
//! that was not caused by the stack also shows in a control, veth or direct, that was measured in both runs: the
//! stack's ratio *to the control* in each round of one run is compared with the same ratio of the other run.
//!
//! Runs that overlap in time were interleaved, as by `cargo xtask bench-ab`; their rounds are pairs
//! ([`Ratio::paired`]).

mod differences;

use std::collections::BTreeMap;

use crate::schema::{BenchmarkReport, Metric};
use crate::stats::Ratio;

use super::markdown::{bullets, table};
use super::summary::{self, CellSummary, StackSummary, Summary, Verdict};
use super::{label, machine, number, outcome};

/// Compares two reports and returns Markdown. `left` is called A and `right` B; ratios are B to A.
pub fn compare(left: &BenchmarkReport, right: &BenchmarkReport) -> String {
    let pair = ReportPair {
        left: &Summary::of(left),
        right: &Summary::of(right),
        interleaved: overlap(left, right),
    };
    let mut out = String::from("# Two reports side by side\n\n");
    out += &format!("A: {} ({})\n\n", machine::sentence(left), left.generator);
    out += &format!("B: {} ({})\n\n", machine::sentence(right), right.generator);
    out += &bullets(&differences::warnings(left, right));
    out += &format!("{}\n\n", pair.method());
    for scenario in pair.left.scenarios() {
        out += &pair.section(scenario);
    }
    out + &bullets(&pair.alone())
}

fn overlap(left: &BenchmarkReport, right: &BenchmarkReport) -> bool {
    left.began < right.ended && right.began < left.ended
}

/// The two reports that are compared, summarised.
struct ReportPair<'a> {
    left: &'a Summary<'a>,
    right: &'a Summary<'a>,
    interleaved: bool,
}

/// The figures of one stack in one cell that both reports contain.
struct StackPair<'a> {
    left: (&'a CellSummary<'a>, &'a StackSummary<'a>),
    right: (&'a CellSummary<'a>, &'a StackSummary<'a>),
}

impl<'a> ReportPair<'a> {
    fn method(&self) -> String {
        let method = if self.interleaved {
            "The runs overlap in time, so they count as interleaved and are compared round by round: a ratio is the median \
             of the rounds' ratios, B to A, with its 95 % interval."
        } else {
            "A ratio is B to A, the median of all ratios between a sample of B and one of A (Hodges-Lehmann), with the \
             95 % interval of two independent samples. The interval does not contain the effect of a machine that was \
             slower in one of the runs. \"Relative to the control\" compares a stack's ratios to veth or direct in each \
             round of B with those of A; the verdict is that of this column if it has a value."
        };
        format!("{method} One in twenty comparisons of equal stacks is called different by chance.")
    }

    fn section(&self, scenario: &str) -> String {
        let both: Vec<_> = self
            .both()
            .filter(|both| both.left.0.cell.scenario == scenario)
            .collect();
        if both.is_empty() {
            return String::new();
        }
        let header = [
            "cell",
            "stack",
            "A",
            "B",
            "B / A",
            "relative to the control",
            "verdict",
        ]
        .map(str::to_owned);
        let rows: Vec<_> = both.iter().map(|both| self.row(both)).collect();
        let moved: Vec<_> = both.iter().filter_map(|both| self.moved(both)).collect();
        format!(
            "## {}\n\n{}{}",
            label::title(scenario),
            table(&header, &rows),
            bullets(&moved)
        )
    }

    fn row(&self, both: &StackPair<'a>) -> Vec<String> {
        let (of, entry) = both.left;
        let figure = |entry: &StackSummary<'_>| match &entry.spread {
            Some(spread) => summary::spread(spread),
            None => outcome::last(entry),
        };
        let (ratio, relative) = (self.ratio(both), self.relative_to_control(both));
        let verdict = match (
            relative.as_ref().map(|(_, ratio)| ratio).or(ratio.as_ref()),
            both.measured(),
        ) {
            (Some(ratio), _) => words(summary::verdict(ratio, of.metric), of.metric).to_owned(),
            (None, [true, true]) if entry.spread == both.right.1.spread => "equal".to_owned(),
            (None, [true, true]) => "not comparable".to_owned(),
            (None, [true, false]) => "only A was measured".to_owned(),
            (None, [false, true]) => "only B was measured".to_owned(),
            (None, [false, false]) => "neither was measured".to_owned(),
        };
        vec![
            format!("`{}`: {}", of.cell.name, Metric::label_of(&of.cell.figure)),
            entry.stack.name.clone(),
            figure(entry),
            figure(both.right.1),
            ratio.as_ref().map(shown).unwrap_or_default(),
            relative
                .map(|(control, ratio)| format!("{} ({control})", shown(&ratio)))
                .unwrap_or_default(),
            verdict,
        ]
    }

    /// Returns a warning if the figure of a control (veth, direct) differs significantly between both runs.
    fn moved(&self, both: &StackPair<'_>) -> Option<String> {
        let (of, entry) = both.left;
        let ratio = self.ratio(both).filter(|_| of.baseline == Some(entry.stack))?;
        let verdict = summary::verdict(&ratio, of.metric);
        (!matches!(verdict, Verdict::NotSignificant | Verdict::TooFew)).then(|| {
            format!(
                "`{}`: {} itself is {} in B than in A ({}): the machine was not the same. The column \"relative to the control\" \
                 accounts for that.",
                of.cell.name,
                entry.stack.name,
                words(verdict, of.metric),
                shown(&ratio),
            )
        })
    }

    fn ratio(&self, both: &StackPair<'_>) -> Option<Ratio> {
        let metric = &both.left.0.cell.figure;
        if self.interleaved {
            return summary::paired(both.right.1, both.left.1, metric);
        }
        let values = |entry: &StackSummary<'_>| {
            summary::values(&entry.samples, metric)
                .map(|(_, value)| value)
                .collect()
        };
        let (left, right): (Vec<_>, Vec<_>) = (values(both.left.1), values(both.right.1));
        Ratio::unpaired(&right, &left)
    }

    /// Returns the ratio, B to A, of this stack's ratios to the control. Returns `None` for the control itself, and
    /// for interleaved runs, in which it would only add noise.
    fn relative_to_control(&self, both: &StackPair<'a>) -> Option<(&'a str, Ratio)> {
        let control = |(of, entry): (&'a CellSummary<'a>, &StackSummary<'_>)| {
            let baseline = of.baseline.filter(|baseline| baseline.name != entry.stack.name)?;
            let control = of.entries.iter().find(|entry| entry.stack == baseline)?;
            let to: BTreeMap<u32, f64> = summary::values(&control.samples, &of.cell.figure).collect();
            let rounds = summary::values(&entry.samples, &of.cell.figure);
            let ratios =
                rounds.filter_map(|(round, value)| Some(value / to.get(&round).filter(|&&to| to > 0.0)?));
            Some((&*baseline.name, ratios.collect::<Vec<f64>>()))
        };
        let ((name, left), (other, right)) = (control(both.left)?, control(both.right)?);
        let ratio = Ratio::unpaired(&right, &left)?;
        (name == other && !self.interleaved).then_some((name, ratio))
    }

    fn both(&self) -> impl Iterator<Item = StackPair<'a>> {
        let (left, right) = (self.left, self.right);
        let cells = left.cells.iter().filter_map(|of| Some((of, find(right, of)?)));
        cells.flat_map(|(left, right)| {
            left.entries.iter().filter_map(move |entry| {
                let other = right
                    .entries
                    .iter()
                    .find(|other| other.stack.name == entry.stack.name)?;
                Some(StackPair {
                    left: (left, entry),
                    right: (right, other),
                })
            })
        })
    }

    /// Returns notes on cells and stacks that only one of the reports contains.
    fn alone(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (name, has, lacks) in [("A", self.left, self.right), ("B", self.right, self.left)] {
            let cells = has.cells.iter().filter(|of| find(lacks, of).is_none());
            notes.extend(cells.map(|of| format!("Only {name} has the cell `{}`.", of.cell.name)));
            let known = |name: &str| lacks.stacks.iter().any(|stack| stack.name == name);
            let stacks = has.stacks.iter().filter(|stack| !known(&stack.name));
            notes.extend(stacks.map(|stack| format!("Only {name} has the stack {}.", stack.name)));
        }
        notes
    }
}

impl StackPair<'_> {
    fn measured(&self) -> [bool; 2] {
        [self.left, self.right].map(|(_, entry)| entry.is_measured())
    }
}

/// Returns the cell of `summary` with the same name and figure as `like`.
fn find<'a>(summary: &'a Summary<'a>, like: &CellSummary<'_>) -> Option<&'a CellSummary<'a>> {
    let same = |of: &&CellSummary<'_>| of.cell.name == like.cell.name && of.cell.figure == like.cell.figure;
    summary.cells.iter().find(same)
}

fn shown(ratio: &Ratio) -> String {
    let interval = ratio
        .interval
        .map(|interval| format!(" ({})", number::factors(interval)));
    number::factor(ratio.median) + &interval.unwrap_or_default()
}

fn words(verdict: Verdict, metric: Metric) -> &'static str {
    let is_speed = ["Mbit/s", "1/s", "us"].contains(&metric.unit);
    match verdict {
        Verdict::Better if is_speed => "faster",
        Verdict::Worse if is_speed => "slower",
        Verdict::NotSignificant => "no significant difference",
        other => other.word(),
    }
}
