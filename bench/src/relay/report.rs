//! The report of `pontoon bench relay`: a table in Markdown, line by line, and JSON.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::report::write_figures;
use crate::schema::Machine;
use crate::{commands, machine};

/// The report of a run of `pontoon bench relay`, as written by `--output`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RelayReport {
    /// The name and version of the program that measured.
    pub(super) generator: &'static str,
    /// The command line of the run.
    pub(super) command: String,
    pub(super) machine: Machine,
    /// Duration of each measurement in seconds.
    pub(super) seconds: u32,
    /// True if latencies were measured (`--latency`).
    pub(super) latency: bool,
    pub(super) figures: Vec<RelayFigure>,
}

/// The figures of one measurement of one relay in one topology.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RelayFigure {
    pub(super) stack: String,
    pub(super) topology: String,
    /// Datagrams per second that the sender was configured to send.
    pub(super) wanted: u32,
    /// Datagrams per second that the sender has sent.
    pub(super) sent: f64,
    /// Datagrams per second that arrived at a sink, averaged over the sinks.
    pub(super) delivered: f64,
    /// Share (0 to 1) of the sent datagrams that did not arrive.
    pub(super) loss: f64,
    /// CPU seconds per second that the relays' processes used.
    pub(super) relay_cpu: f64,
    /// CPU seconds per second that the whole machine used, including the sender.
    pub(super) machine_cpu: f64,
    /// Time from the send call to the receive timestamp of the sink's kernel, in microseconds: 50th, 99th and 99.9th
    /// percentile.
    pub(super) latency_us: Option<[f64; 3]>,
}

impl RelayReport {
    pub(super) fn new(seconds: u32, latency: bool) -> Self {
        Self {
            generator: concat!("pontoon bench relay ", env!("CARGO_PKG_VERSION")),
            command: commands::command_line(),
            machine: machine::describe(),
            seconds,
            latency,
            figures: Vec::new(),
        }
    }

    /// Returns the names of the report table's columns.
    pub(super) fn columns(&self) -> impl Iterator<Item = &'static str> {
        let latency = self.latency.then_some("p50 / p99 / p99.9, us");
        COLUMNS.into_iter().chain(latency)
    }

    /// Returns the header lines of the Markdown table.
    pub(super) fn header(&self) -> String {
        let columns: Vec<_> = self.columns().collect();
        format!("| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()))
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        write_figures(self, path)
    }
}

const COLUMNS: [&str; 8] = [
    "topology",
    "offered",
    "stack",
    "sent",
    "delivered",
    "loss",
    "relay CPU",
    "machine CPU",
];

impl RelayFigure {
    /// Returns the text of each column of this figure's row.
    pub(super) fn cells(&self) -> Vec<String> {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let mut cells = vec![
            self.topology.clone(),
            self.wanted.to_string(),
            self.stack.clone(),
            format!("{:.0}", self.sent),
            format!("{:.0}", self.delivered),
            // A loss that is not zero must not be rounded to 0 %.
            match self.loss * 100.0 {
                0.0 => "0".to_owned(),
                loss if loss < 0.01 => "< 0.01 %".to_owned(),
                loss => format!("{loss:.2} %"),
            },
            percent(self.relay_cpu),
            percent(self.machine_cpu),
        ];
        if let Some([half, most, nearly_all]) = self.latency_us {
            cells.push(format!("{half:.0} / {most:.0} / {nearly_all:.0}"));
        }
        cells
    }

    /// Returns the figure as a line of the Markdown table.
    pub(super) fn row(&self) -> String {
        format!("| {} |", self.cells().join(" | "))
    }
}

pub(super) fn print_line(line: &str) -> Result<()> {
    commands::print(&format!("{line}\n"))
}

#[cfg(test)]
pub(super) fn example() -> RelayReport {
    let figure = |stack: &str, loss| RelayFigure {
        stack: stack.to_owned(),
        topology: "chain-3".to_owned(),
        wanted: 500_000,
        sent: 499_990.0,
        delivered: 499_990.0 * (1.0 - loss),
        loss,
        relay_cpu: 0.5,
        machine_cpu: 1.52,
        latency_us: Some([90.4, 160.0, 500.0]),
    };
    RelayReport {
        figures: vec![figure("pontoon", 0.0), figure("mcr", 0.00001)],
        ..RelayReport::new(3, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_columns_of_the_header() {
        let report = example();
        let header = report.header();
        assert!(
            header.starts_with("| topology | offered |") && header.contains("us |\n|---|---|"),
            "{header}"
        );
        let rows: Vec<String> = report.figures.iter().map(RelayFigure::row).collect();
        assert_eq!(
            rows,
            [
                "| chain-3 | 500000 | pontoon | 499990 | 499990 | 0 | 50 % | 152 % | 90 / 160 / 500 |",
                "| chain-3 | 500000 | mcr | 499990 | 499985 | < 0.01 % | 50 % | 152 % | 90 / 160 / 500 |",
            ]
        );
    }
}
