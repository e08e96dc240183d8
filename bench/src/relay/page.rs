//! The report of `pontoon bench relay` as a self-contained HTML page.

use maud::{Markup, html};

use super::report::{RelayFigure, RelayReport};
use crate::report::html::page;

/// Returns the HTML page of a report.
pub(super) fn html(report: &RelayReport) -> String {
    let title = "Multicast relays side by side";
    let machine = &report.machine;
    page::shell(
        title,
        &html! {
            header {
                h1 { (title) }
                p { (machine.cpu) ", " (machine.cpus) " CPUs, Linux " (machine.kernel) "; " (report.seconds) " s each." }
            }
            main { @for figures in report.figures.chunk_by(|a, b| a.topology == b.topology) { (section(report, figures)) } }
            footer {
                section class="prose" {
                    h2 { "How it was measured" }
                    p {
                        "One sender sends at a constant rate; each relay and each sink has a network namespace of its own. \
                         Sinks count in the kernel. The sender has one CPU, and the relays share another. "
                        b { "Delivered" } " is the rate at each sink. " b { "Relay CPU" } " is that of the relays' \
                         processes. Relays that forward in the kernel have none, and their CPU time is part of the \
                         machine's, of which one CPU is the sender's."
                    }
                    p { "Command:" }
                    pre { (report.command) }
                }
                p class="remark" { "Written by " (report.generator) "." }
            }
        },
    )
}

fn section(report: &RelayReport, figures: &[RelayFigure]) -> Markup {
    let topology = figures.first().map_or("", |figure| &figure.topology);
    html! {
        section {
            h2 { (topology) }
            div class="wide" {
                table {
                    thead { tr { @for column in report.columns().skip(1) { th { (column) } } } }
                    tbody { @for figure in figures { (row(figure)) } }
                }
            }
        }
    }
}

fn row(figure: &RelayFigure) -> Markup {
    html! {
        tr { @for cell in figure.cells().iter().skip(1) { td { (cell) } } }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::example;
    use super::*;

    #[test]
    fn page_contains_every_figure() {
        let report = example();
        let page = scraper::Html::parse_document(&html(&report));
        let cells = scraper::Selector::parse("main td").unwrap();
        let shown: Vec<String> = page.select(&cells).map(|cell| cell.text().collect()).collect();
        let wanted: Vec<String> = report
            .figures
            .iter()
            .flat_map(|figure| figure.cells().into_iter().skip(1))
            .collect();
        assert_eq!(shown, wanted);
        assert!(page.errors.is_empty(), "{:?}", page.errors);
    }
}
