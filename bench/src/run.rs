//! The runner: measures every cell of every stack once per round, in turn, and writes the report after each sample.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::host::Host;
use crate::report;
use crate::sandbox_ns::SandboxNs;
use crate::scenario::CellSpec;
use crate::schema::{BenchmarkReport, Sample, SampleOutcome};
use crate::stack::{Candidate, NetworkConfig, Stack};

pub(crate) mod measurement;
mod plan;
pub(crate) mod processes;
mod progress;
mod session;
mod snapshot;

use measurement::{Measurement, Observation};
use plan::PlannedSample;
use progress::Progress;

/// Limit on open descriptors (RLIMIT_NOFILE) with which a process can open 100,000 connections.
const DESCRIPTORS: u64 = 262_144;

/// A run of all planned measurements, new or resumed from a report file.
pub(crate) struct BenchmarkRun {
    pub(crate) cells: Vec<CellSpec>,
    pub(crate) candidates: Vec<Candidate>,
    /// The report of the samples so far. Its cells and stacks have the order of `cells` and `candidates`.
    pub(crate) report: BenchmarkReport,
    pub(crate) output: Option<PathBuf>,
}

impl BenchmarkRun {
    /// Continues the run whose report is in the file `path`.
    ///
    /// # Errors
    /// The report in the file has another plan.
    pub(crate) fn resume(&mut self, path: &Path) -> Result<()> {
        let earlier = report::read_json(path)?;
        let differs = |what: &str| -> Result<()> {
            bail!(
                "{} is a run with other {what} (try: the options of that run, or another --output)",
                path.display()
            )
        };
        if earlier.plan != self.report.plan || earlier.cells != self.report.cells {
            differs("scenarios, stacks, rounds or duration")?;
        }
        if earlier.stacks != self.report.stacks {
            differs("versions of its stacks")?;
        }
        if let Some(found) = report::machine::differences(&earlier, &self.report).first() {
            differs(&format!("{} ({}, now {})", found.what, found.left, found.right))?;
        }
        self.report = earlier;
        Ok(())
    }

    /// Writes the report of the samples so far, if there is an output file.
    ///
    /// # Errors
    /// See [`report::write_json`].
    pub(crate) fn write(&self) -> Result<()> {
        match &self.output {
            Some(path) => report::write_json(&self.report, path),
            None => Ok(()),
        }
    }

    /// Makes the remaining measurements. The calling process must be the only one in new namespaces.
    ///
    /// # Errors
    /// The network cannot be built, or the report cannot be written.
    pub(crate) fn execute(&mut self, sandbox_ns: &SandboxNs) -> Result<()> {
        raise_descriptors();
        let mut host = Host::new(sandbox_ns.clone())?;
        let tasks = plan::left(&self.report);
        let duration = self.report.plan.duration;
        let cost = |task: &PlannedSample| self.cells[task.cell].seconds(duration);
        let mut progress = Progress::start(tasks.len(), tasks.iter().map(cost).sum());
        for task in tasks {
            let spec = &self.cells[task.cell];
            let entry = &self.candidates[task.stack];
            let stack = entry
                .stack
                .as_deref()
                .context("a stack of the plan is not installed")?;
            progress.start_sample(&spec.cell.name, &entry.described.name);
            let sample = self.measure(&mut host, spec, stack, &entry.described.name, task.round);
            progress.report(&sample, &spec.cell.figure, spec.seconds(duration));
            self.report.samples.push(sample);
            self.report.ended = now();
            self.write()?;
        }
        progress.finish();
        Ok(())
    }

    fn measure(&self, host: &mut Host, spec: &CellSpec, stack: &dyn Stack, name: &str, round: u32) -> Sample {
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let observation = self.observe(host, spec, stack, name, round);
        if matches!(
            observation.outcome,
            SampleOutcome::Stalled { .. } | SampleOutcome::Failed { .. }
        ) {
            host.restart_servers();
        }
        Sample {
            cell: spec.cell.name.clone(),
            stack: name.to_owned(),
            round,
            at_ms: (begun.as_millis() as u64).saturating_sub(self.report.began * 1000),
            outcome: observation.outcome,
            values: observation.values,
            histograms: observation.histograms,
            trials: observation.trials,
            conditions: observation.conditions,
        }
    }

    fn observe(
        &self,
        host: &mut Host,
        spec: &CellSpec,
        stack: &dyn Stack,
        name: &str,
        round: u32,
    ) -> Observation {
        let congestion_control = match host.prepare(spec.congestion_control) {
            Ok(name) => name,
            Err(error) => return Observation::unreachable(format!("{error:#}")),
        };
        let ports = match host.ports(&congestion_control) {
            Ok(ports) => ports,
            Err(error) => return Observation::failed(format!("{error:#}")),
        };
        let measurement = Measurement {
            host,
            stack,
            ports,
            congestion_control,
            duration: self.report.plan.duration,
            unit: spec.unit,
            config: NetworkConfig {
                mtu: spec.mtu,
                publish: spec.publish.then(|| host.port_to_publish()),
            },
            earlier: self
                .report
                .samples
                .iter()
                .filter(|sample| sample.stack == name && sample.round == round)
                .collect(),
        };
        (spec.measure)(&measurement)
    }
}

/// Returns the current time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Raises the limit on open descriptors to [`DESCRIPTORS`], or, for users without the privilege, to the hard limit.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.map(|hard| hard.max(DESCRIPTORS));
    let raised = Rlimit {
        current: hard,
        maximum: hard,
    };
    if setrlimit(Resource::Nofile, raised).is_err() {
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                ..limit
            },
        );
    }
}
