//! The section of one scenario in the HTML page: bars, distributions, CPU time, the table, and warnings.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::{code, direction, notes};
use crate::report::plot::{self, BarRow, Bars};
use crate::report::summary::{self, CellSummary, StackSummary, Summary};
use crate::report::{label, number, outcome, overhead, warnings};
use crate::schema::{Metric, StackDescription};

/// Pairs of metrics: CPU time of the stack and of the whole machine, for each unit of work.
const COSTS: &[(&str, &str)] = &[
    ("cpu_per_gbit_s", "machine_cpu_per_gbit_s"),
    ("cpu_per_transaction_us", "machine_cpu_per_transaction_us"),
    ("cpu_per_datagram_us", "machine_cpu_per_datagram_us"),
];

/// Metrics that are plotted in addition to a cell's figure, if a sample has them.
const OTHER_METRICS: &[&str] = &["lossless_per_s", "bytes_per_flow", "first_byte_us", "pss_bytes"];

pub(super) fn section(summary: &Summary<'_>, name: &str) -> Markup {
    let cells: Vec<_> = summary.cells_of(name).collect();
    html! {
        section id=(name) {
            h2 { (label::title(name)) }
            @if let Some(about) = label::about(name) { p { (about) } }
            (plots(&cells, &summary.stacks))
            details {
                summary { "Table of figures" }
                (table(summary, &cells))
            }
            (notes(&warnings::of_scenario(summary, name)))
        }
    }
}

/// Returns the plots of a scenario. If there are curves, each cell has a row (bars, curves, CPU time); otherwise all
/// bars are followed by all plots of CPU time, which takes less space.
fn plots(cells: &[&CellSummary<'_>], stacks: &[&StackDescription]) -> Markup {
    let cells: Vec<_> = cells.iter().copied().filter(|of| !of.cell.once).collect();
    let bars: Vec<_> = cells.iter().map(|of| bars(of, &cells, stacks)).collect();
    let curves: Vec<_> = cells.iter().map(|of| curves(of, stacks)).collect();
    let costs: Vec<_> = cells.iter().map(|of| costs(of, &cells, stacks)).collect();
    html! {
        @if curves.iter().all(Vec::is_empty) {
            div class="plots" { @for plot in bars.into_iter().flatten() { (plot) } }
            div class="plots" { @for plot in costs.into_iter().flatten() { (plot) } }
        } @else {
            @for ((bars, curves), costs) in bars.into_iter().zip(curves).zip(costs) {
                div class="plots" {
                    @for plot in bars.into_iter().chain(curves).chain(costs) { (plot) }
                }
            }
        }
    }
}

/// Returns bar plots of a cell's figure and of its metrics in [`OTHER_METRICS`].
fn bars(of: &CellSummary<'_>, cells: &[&CellSummary<'_>], stacks: &[&StackDescription]) -> Vec<Markup> {
    let metrics = std::iter::once(&*of.cell.figure).chain(
        OTHER_METRICS
            .iter()
            .copied()
            .filter(|&name| name != of.cell.figure),
    );
    let plot = |metric: &str| {
        let rows: Vec<_> = of
            .entries
            .iter()
            .map(|entry| row(of, entry, metric, stacks))
            .collect();
        // Plots of the same metric have the same axis in all cells.
        let alike = |other: &&&CellSummary<'_>| metric != of.cell.figure || other.cell.figure == metric;
        let entries = cells.iter().filter(alike).flat_map(|of| &of.entries);
        let end = Bars::end(entries.filter_map(|entry| entry.spread_of(metric)));
        let is_worth_it = metric == of.cell.figure || rows.iter().any(|row| row.bar.is_some());
        let caption = format!(
            "{}{}",
            Metric::label_of(metric),
            direction(summary::metric(metric))
        );
        is_worth_it.then(|| plot(&parameters(of), &caption, &Bars { rows, end }.markup()))
    };
    metrics.filter_map(plot).collect()
}

fn row(of: &CellSummary<'_>, entry: &StackSummary<'_>, metric: &str, stacks: &[&StackDescription]) -> BarRow {
    let name = entry.stack.name.clone();
    let colour = plot::colour(stacks, entry.stack);
    if metric != of.cell.figure {
        let bar = entry.spread_of(metric);
        return BarRow {
            name,
            colour,
            bar,
            whole: None,
            label: bar.map_or_else(|| "-".to_owned(), |spread| number::figure(spread.median)),
        };
    }
    let ratio = entry.to_baseline.zip(of.baseline);
    let ratio = ratio.map(|(ratio, to)| format!("{} × {}", number::factor(ratio.median), to.name));
    let remark = outcome::losses(entry).or(ratio).unwrap_or_default();
    BarRow {
        name,
        colour,
        bar: entry.spread,
        whole: None,
        label: format!("{}  {remark}", of.headline(entry)),
    }
}

/// Returns plots of the cumulative distribution of every histogram, and of the loss by rate.
fn curves(of: &CellSummary<'_>, stacks: &[&StackDescription]) -> Vec<Markup> {
    let samples = of.entries.iter().flat_map(|entry| &entry.samples);
    let names: BTreeSet<_> = samples.flat_map(|sample| sample.histograms.keys()).collect();
    let distributions = names.into_iter().filter_map(|name| {
        let curves = plot::distribution(of, stacks, name)?;
        Some(plot(
            &parameters(of),
            "cumulative share of the transactions",
            &curves,
        ))
    });
    let losses = plot::rate_loss(of, stacks);
    let losses = losses.map(|curves| plot(&parameters(of), "share of the datagrams lost", &curves));
    distributions.chain(losses).collect()
}

fn costs(of: &CellSummary<'_>, cells: &[&CellSummary<'_>], stacks: &[&StackDescription]) -> Vec<Markup> {
    let plot = |&(part, whole): &(&str, &str)| {
        let entries = || cells.iter().flat_map(|of| &of.entries);
        let spreads = entries().flat_map(|entry| [entry.spread_of(part), entry.spread_of(whole)]);
        let rows: Vec<_> = of
            .entries
            .iter()
            .filter_map(|entry| cost(entry, stacks, part, whole))
            .collect();
        let caption = format!("{}; light: the whole machine", Metric::label_of(part));
        let bars = Bars {
            end: Bars::end(spreads.flatten()),
            rows,
        };
        (!bars.rows.is_empty()).then(|| plot(&parameters(of), &caption, &bars.markup()))
    };
    COSTS.iter().filter_map(plot).collect()
}

fn cost(entry: &StackSummary<'_>, stacks: &[&StackDescription], part: &str, whole: &str) -> Option<BarRow> {
    let (bar, whole) = (entry.spread_of(part), entry.spread_of(whole));
    let figure = number::figure(bar.or(whole)?.median);
    let remark = match (bar, whole) {
        (Some(_), Some(whole)) => format!("of {}", number::figure(whole.median)),
        (Some(_), None) => String::new(),
        (None, _) => "machine".to_owned(),
    };
    Some(BarRow {
        name: entry.stack.name.clone(),
        colour: plot::colour(stacks, entry.stack),
        bar,
        whole,
        label: format!("{figure}  {remark}"),
    })
}

fn parameters(of: &CellSummary<'_>) -> String {
    let parameters = label::parameters(of.cell);
    if parameters.is_empty() {
        label::title(&of.cell.scenario).to_owned()
    } else {
        parameters
    }
}

fn plot(title: &str, caption: &str, plot: &Markup) -> Markup {
    html! {
        figure {
            figcaption { b { (title) } span class="remark" { (code(caption)) } }
            (plot)
        }
    }
}

fn table(summary: &Summary<'_>, cells: &[&CellSummary<'_>]) -> Markup {
    html! {
        div class="wide" {
            table {
                thead {
                    tr { th { "median [least-most]" } @for stack in &summary.stacks { th { (stack.name) } } }
                }
                tbody {
                    @for of in cells {
                        tr class="first" {
                            th { (code(&format!("`{}`", of.cell.name))) small { (code(Metric::label_of(&of.cell.figure))) } }
                            @for entry in &of.entries {
                                td { @for line in of.lines(entry) { div { (line) } } }
                            }
                        }
                        @if let Some(shares) = overhead::shares(of, &summary.report.calibration) {
                            tr {
                                th { small { (overhead::TITLE) } }
                                @for share in shares { td { (share) } }
                            }
                        }
                        @for metric in of.other_metrics() {
                            tr {
                                th { small { (Metric::label_of(metric)) } }
                                @for entry in &of.entries {
                                    td { @if let Some(spread) = entry.spread_of(metric) { (summary::spread(&spread)) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
