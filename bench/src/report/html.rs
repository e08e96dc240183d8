//! A report as a self-contained HTML page, without network access, scripts or other files.

pub(crate) mod page;
mod scenario;

use maud::{Markup, html};

use crate::schema::{BenchmarkReport, Better, Metric};
use crate::stats::{CONFIDENCE, LEAST_PAIRS};

use super::summary::{CellSummary, StackSummary, Summary, Verdict};
use super::{Completeness, label, machine, number, outcome, warnings};

/// Returns the HTML page of a report.
pub fn html(report: &BenchmarkReport) -> String {
    let summary = Summary::of(report);
    let title = "User-mode network stacks side by side";
    page::shell(
        title,
        &html! {
            header {
                h1 { (title) }
                p { (machine::sentence(report)) }
                (headline(&summary))
                (notes(&warnings::of_run(&summary)))
            }
            (how_to_read(report))
            main {
                @for name in summary.scenarios() { (scenario::section(&summary, name)) }
            }
            footer {
                (how_it_was_measured(report))
                (stacks(report))
                (machine_table(report))
            }
        },
    )
}

/// Returns notes as an HTML list; text between backticks becomes `<code>`.
fn notes(notes: &[impl ToString]) -> Markup {
    html! {
        @if !notes.is_empty() {
            ul class="notes" { @for note in notes { li { (code(&note.to_string())) } } }
        }
    }
}

fn code(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

fn headline(summary: &Summary<'_>) -> Markup {
    html! {
        div class="wide" {
            table class="headline" {
                thead {
                    tr {
                        th { "median" }
                        @for stack in &summary.stacks { th { (stack.name) small { (stack.role.label()) } } }
                    }
                }
                tbody {
                    @for of in summary.headlines() {
                        tr {
                            th {
                                a href={ "#" (of.cell.scenario) } { (label::cell(of.cell)) }
                                small { (code(Metric::label_of(&of.cell.figure))) (direction(of.metric)) }
                            }
                            @for entry in &of.entries { (headline_figure(of, entry)) }
                        }
                    }
                }
            }
        }
    }
}

fn headline_figure(of: &CellSummary<'_>, entry: &StackSummary<'_>) -> Markup {
    let ratio = entry.to_baseline.zip(of.baseline);
    let verdict = ratio.map(|(ratio, _)| of.verdict(&ratio));
    html! {
        td class=(class(verdict)) {
            @if entry.is_measured() { (of.headline(entry)) } @else { span class="none" { (outcome::last(entry)) } }
            @if let Some((ratio, baseline)) = ratio {
                small { (number::factor(ratio.median)) " × " (baseline.name) }
            }
            @if let Some(losses) = outcome::losses(entry) { small class="loss" { (losses) } }
        }
    }
}

fn class(verdict: Option<Verdict>) -> &'static str {
    match verdict {
        Some(Verdict::Better) => "better",
        Some(Verdict::Worse) => "worse",
        Some(Verdict::Different | Verdict::NotSignificant | Verdict::TooFew) | None => "",
    }
}

/// Returns the text `higher is better` or `lower is better` for a metric, or no text if neither is.
fn direction(metric: Metric) -> &'static str {
    match metric.better {
        Some(Better::Higher) => "; higher is better",
        Some(Better::Lower) => "; lower is better",
        None => "",
    }
}

fn how_to_read(report: &BenchmarkReport) -> Markup {
    html! {
        section class="prose" {
            h2 { "How to read this" }
            p {
                "Each column is a way out of a network namespace. " b { "direct" } " is the host's loopback, without a \
                 namespace; " b { "veth" } " is the kernel's virtual Ethernet pair, which only root can create. These two \
                 are the kernel's own path. The others are programs that unprivileged users can start. "
                b { "Up" } " is from the guest, inside the namespace, to the host; " b { "down" } " is the other direction."
            }
            ul {
                li {
                    b { "Bars" } " are medians over the rounds. A whisker reaches from the least to the most value, without \
                     an end where that is beyond the plot; its thick part contains half of the rounds. A bar with a gap is \
                     longer than the plot."
                }
                li {
                    b { "0.70 × veth (0.66-0.75)" } " is a comparison within each round: the median of the rounds' ratios, \
                     and the interval that contains the true ratio with " (format!("{:.0}", CONFIDENCE * 100.0)) " % \
                     confidence. If the interval contains 1, the difference is not significant (≈). At least "
                    (LEAST_PAIRS) " rounds are needed; this report has " (report.plan.rounds) ". Significantly "
                    span class="better" { "better" } " and " span class="worse" { "worse" } " figures are coloured."
                }
                li {
                    b { "Distributions" } " are cumulative, over every transaction of every round: the share of transactions \
                     that took at most this time. The vertical axis is logistic, so that the slowest one in a hundred, \
                     above 99 %, is visible."
                }
                li {
                    b { "Loss" } " of datagrams increases from zero at the rate that a stack can forward; the dashed line is \
                     0.1 %, the most that counts as lossless. Both axes are logarithmic."
                }
                li {
                    b { "CPU" } " has two parts: dark, the stack's own processes; light, the whole machine, with the kernel \
                     and with the load generator, which is the same for all stacks."
                }
            }
        }
    }
}

fn how_it_was_measured(report: &BenchmarkReport) -> Markup {
    let of = Completeness::of(report);
    html! {
        section class="prose" {
            h2 { "How it was measured" }
            p {
                "All stacks have the same server and client program. The server accepts in a blocking call and answers in \
                 the same thread; a round trip waits for its answer; every stream contains its positions, which are \
                 checked. Each measurement has a warm-up that is discarded, and a deadline of three times its length, after \
                 which a stack is reported as stalled. Each round measures every stack, so that a slow change of the \
                 machine affects all of them. " (number::count(of.measured as u64)) " of "
                (number::count(of.planned as u64)) " planned samples were measured."
            }
            @if !report.command.is_empty() {
                p { "Command:" }
                pre { (report.command) }
            }
        }
    }
}

fn stacks(report: &BenchmarkReport) -> Markup {
    html! {
        section {
            h2 { "Stacks" }
            div class="wide" {
                table {
                    thead { tr { th { "stack" } th { "what it is" } th { "version" } th { "started with" } } }
                    tbody {
                        @for stack in &report.stacks {
                            tr {
                                th { (stack.name) }
                                td { (stack.role.label()) }
                                td { (stack.version) }
                                @match &stack.missing {
                                    Some(why) => td { "not part of this run: " (why) },
                                    None => td { code { (stack.command) } },
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn machine_table(report: &BenchmarkReport) -> Markup {
    html! {
        section {
            h2 { "Machine" }
            div class="wide" {
                table {
                    tbody {
                        @for (name, value) in machine::facts(report) { tr { th { (name) } td { (value) } } }
                    }
                }
            }
            p class="remark" { "Written by " (report.generator) "." }
        }
    }
}
