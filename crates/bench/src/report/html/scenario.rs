//! One scenario's section: bars, distributions, CPU, the table behind them, and notes.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::{code, direction, notes};
use crate::report::plot::{self, Bars, Row};
use crate::report::summary::{self, CellSummary, Entry, Summary};
use crate::report::{label, number, words};
use crate::schema::Stack;

/// CPU time of the stack and of the machine, by what it is spent on.
const COSTS: &[(&str, &str)] = &[
    ("cpu_per_gbit_s", "machine_cpu_per_gbit_s"),
    ("cpu_per_transaction_us", "machine_cpu_per_transaction_us"),
    ("cpu_per_datagram_us", "machine_cpu_per_datagram_us"),
];

pub(super) fn section(summary: &Summary<'_>, name: &str) -> Markup {
    let cells: Vec<_> = summary.cells_of(name).collect();
    html! {
        section id=(name) {
            h2 { (label::title(name)) }
            @if let Some(question) = label::question(name) { p { (question) } }
            div class="plots" { (figures(summary, &cells)) }
            @let curves: Vec<_> = cells.iter().flat_map(|of| curves(of, &summary.stacks)).collect();
            @if !curves.is_empty() { div class="plots" { @for curve in curves { (curve) } } }
            @for &(part, whole) in COSTS {
                @let costs = costs(&cells, &summary.stacks, part, whole);
                @if !costs.is_empty() { div class="plots" { @for cost in costs { (cost) } } }
            }
            details {
                summary { "The figures" }
                (table(summary, &cells))
            }
            (notes(&words::of_scenario(summary, name)))
        }
    }
}

fn figures(summary: &Summary<'_>, cells: &[&CellSummary<'_>]) -> Markup {
    html! {
        @for of in cells {
            // Cells with the same metric have the same axis.
            @let alike = cells.iter().filter(|other| other.cell.figure == of.cell.figure);
            @let spreads = alike.flat_map(|of| of.entries.iter().filter_map(|entry| entry.spread));
            @let rows = of.entries.iter().map(|entry| row(of, entry, &summary.stacks)).collect();
            @let caption = format!("{}{}", label::metric(&of.cell.figure), direction(of));
            (plot(&parameters(of), &caption, &Bars { rows, end: Bars::end(spreads) }.markup()))
        }
    }
}

fn row(of: &CellSummary<'_>, entry: &Entry<'_>, stacks: &[&Stack]) -> Row {
    let ratio = entry.to_baseline.zip(of.baseline);
    Row {
        name: entry.stack.name.clone(),
        tint: plot::tint(stacks, entry.stack),
        bar: entry.spread,
        whole: None,
        figure: of.headline(entry),
        remark: ratio.map_or(String::new(), |(ratio, to)| {
            format!("{} × {}", number::factor(ratio.median), to.name)
        }),
        tip: format!("{}: {}", entry.stack.name, of.lines(entry).join("; ")),
    }
}

/// Distributions of all that has a histogram, and losses by rate.
fn curves(of: &CellSummary<'_>, stacks: &[&Stack]) -> Vec<Markup> {
    let samples = of.entries.iter().flat_map(|entry| &entry.samples);
    let names: BTreeSet<_> = samples.flat_map(|sample| sample.histograms.keys()).collect();
    let distributions = names.into_iter().filter_map(|name| {
        let curves = plot::distribution(of, stacks, name)?;
        Some(plot(
            &parameters(of),
            "share of all transactions that took",
            &curves,
        ))
    });
    let losses = plot::rate_loss(of, stacks);
    let losses = losses.map(|curves| plot(&parameters(of), "share of the datagrams lost", &curves));
    distributions.chain(losses).collect()
}

fn costs(cells: &[&CellSummary<'_>], stacks: &[&Stack], part: &str, whole: &str) -> Vec<Markup> {
    let wholes = cells
        .iter()
        .flat_map(|of| of.entries.iter().filter_map(|entry| entry.spread_of(whole)));
    let parts = cells
        .iter()
        .flat_map(|of| of.entries.iter().filter_map(|entry| entry.spread_of(part)));
    let end = Bars::end(wholes.chain(parts));
    let caption = format!("{}; light: the whole machine", label::metric(part));
    let cell = |of: &&CellSummary<'_>| {
        let rows: Vec<_> = of
            .entries
            .iter()
            .filter_map(|entry| cost(entry, stacks, part, whole))
            .collect();
        (!rows.is_empty()).then(|| plot(&parameters(of), &caption, &Bars { rows, end }.markup()))
    };
    cells.iter().filter_map(cell).collect()
}

fn cost(entry: &Entry<'_>, stacks: &[&Stack], part: &str, whole: &str) -> Option<Row> {
    let (bar, whole) = (entry.spread_of(part), entry.spread_of(whole));
    let figure = number::figure(bar.or(whole)?.median);
    let of = bar
        .and(whole)
        .map(|whole| format!("of {}", number::figure(whole.median)));
    let all = if bar.is_none() { "machine" } else { "" };
    Some(Row {
        name: entry.stack.name.clone(),
        tint: plot::tint(stacks, entry.stack),
        tip: format!("{}: {figure} {}", entry.stack.name, of.as_deref().unwrap_or(all)),
        bar,
        whole,
        figure,
        remark: of.unwrap_or_else(|| all.to_owned()),
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
                            th { (code(&format!("`{}`", of.cell.name))) small { (code(&label::metric(&of.cell.figure))) } }
                            @for entry in &of.entries {
                                td { @for line in of.lines(entry) { div { (line) } } }
                            }
                        }
                        @for metric in of.other_metrics() {
                            tr {
                                th { small { (label::metric(metric)) } }
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
