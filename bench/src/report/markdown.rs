//! A report as Markdown: the headline table first, which fits into a README, then the tables of all figures.

use std::fmt::Write as _;

use crate::schema::{BenchmarkReport, Metric};

use super::machine;
use super::summary::{self, CellSummary, StackSummary, Summary};
use super::{label, outcome, overhead, warnings};

/// Returns a report as Markdown: medians with extremes, ratios with intervals, and warnings.
pub fn markdown(report: &BenchmarkReport) -> String {
    let summary = Summary::of(report);
    let mut out = String::from("# User-mode network stacks side by side\n\n");
    out += &format!("{}\n\n", machine::sentence(report));
    out += &headline(&summary);
    if !report.command.is_empty() {
        out += &format!("```sh\n{}\n```\n\n", report.command);
    }
    out += &bullets(&warnings::of_run(&summary));
    for scenario in summary.scenarios() {
        out += &section(&summary, scenario);
    }
    out += &stacks(report);
    out += &machine_table(report);
    out
}

fn headline(summary: &Summary<'_>) -> String {
    let row = |of: &&CellSummary<'_>| {
        let name = format!("{}: {}", label::cell(of.cell), Metric::label_of(&of.cell.figure));
        let figure = |entry| match outcome::losses(entry) {
            Some(losses) => format!("{} ({losses})", of.headline(entry)),
            None => of.headline(entry),
        };
        let figures = of.entries.iter().map(figure);
        std::iter::once(name).chain(figures).collect()
    };
    let rows: Vec<Vec<String>> = summary.headlines().iter().map(row).collect();
    let mut out = table(&header("", summary), &rows);
    let equal = rows.iter().flatten().any(|figure| figure.starts_with('≈'));
    if equal {
        out += "≈: no significant difference from the kernel's own path.\n\n";
    }
    out
}

fn section(summary: &Summary<'_>, scenario: &str) -> String {
    let cells: Vec<_> = summary.cells_of(scenario).collect();
    let mut out = format!("## {} (`{scenario}`)\n\n", label::title(scenario));
    if let Some(about) = label::about(scenario) {
        out += &format!("{about}\n\n");
    }
    let main = cells.iter().map(|of| {
        let figures = of.entries.iter().map(|entry| of.lines(entry).join("<br>"));
        std::iter::once(row_name(of, &of.cell.figure))
            .chain(figures)
            .collect()
    });
    out += &table(
        &header("median [least-most]", summary),
        &main.collect::<Vec<Vec<String>>>(),
    );
    let other: Vec<_> = cells.iter().flat_map(|of| other_rows(of, summary)).collect();
    if !other.is_empty() {
        let table = table(&header("median [least-most]", summary), &other);
        out += &format!("<details><summary>Other metrics</summary>\n\n{table}</details>\n\n");
    }
    out + &bullets(&warnings::of_scenario(summary, scenario))
}

/// Returns the table rows of a cell's metrics besides its figure, and of the harness's share of the figure.
fn other_rows(of: &CellSummary<'_>, summary: &Summary<'_>) -> Vec<Vec<String>> {
    let row = |metric| {
        let spread =
            |entry: &StackSummary<'_>| entry.spread_of(metric).map(|spread| summary::spread(&spread));
        let figures = of.entries.iter().map(|entry| spread(entry).unwrap_or_default());
        std::iter::once(row_name(of, metric)).chain(figures).collect()
    };
    let own = overhead::shares(of, &summary.report.calibration).map(|shares| {
        let name = format!("`{}`: {}", of.cell.name, overhead::TITLE);
        std::iter::once(name).chain(shares).collect()
    });
    of.other_metrics().into_iter().map(row).chain(own).collect()
}

fn row_name(of: &CellSummary<'_>, metric: &str) -> String {
    format!("`{}`: {}", of.cell.name, Metric::label_of(metric))
}

fn stacks(report: &BenchmarkReport) -> String {
    let row = |stack: &crate::schema::StackDescription| {
        let how = match &stack.missing {
            Some(why) => format!("not part of this run: {why}"),
            None => format!("`{}`", stack.command),
        };
        vec![
            stack.name.clone(),
            stack.role.label().to_owned(),
            stack.version.clone(),
            how,
        ]
    };
    let header = ["stack", "what it is", "version", "started with"].map(str::to_owned);
    let rows: Vec<_> = report.stacks.iter().map(row).collect();
    format!("## Stacks\n\n{}", table(&header, &rows))
}

fn machine_table(report: &BenchmarkReport) -> String {
    let rows: Vec<_> = machine::facts(report)
        .into_iter()
        .map(|(name, value)| vec![name, value])
        .collect();
    let table = table(&["machine", ""].map(str::to_owned), &rows);
    format!("## Machine\n\n{table}Written by {}.\n", report.generator)
}

fn header(first: &str, summary: &Summary<'_>) -> Vec<String> {
    let stacks = summary.stacks.iter().map(|stack| stack.name.clone());
    std::iter::once(first.to_owned()).chain(stacks).collect()
}

pub(super) fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let mut out = String::new();
    let mut line = |cells: &[String]| {
        for cell in cells {
            // An unescaped `|` ends a table cell, even inside code; a line break ends the table.
            let _ = write!(out, "| {} ", cell.replace('|', "\\|").replace('\n', " "));
        }
        out += "|\n";
    };
    line(header);
    line(&vec!["---".to_owned(); header.len()]);
    rows.iter().for_each(|row| line(row));
    out + "\n"
}

pub(super) fn bullets(notes: &[impl ToString]) -> String {
    let mut out: String = notes
        .iter()
        .map(|note| format!("- {}\n", note.to_string().replace('\n', " ")))
        .collect();
    if !out.is_empty() {
        out.push('\n');
    }
    out
}
