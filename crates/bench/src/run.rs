//! The runner: asks every stack every question once per round, in turn, and writes what it has after each.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::enclosure::Enclosure;
use crate::host::Host;
use crate::report;
use crate::scenario::Question;
use crate::schema::{Outcome, Report, Sample};
use crate::stack::{Entry, Stack, Wish};

pub(crate) mod asking;
mod moment;
mod plan;
pub(crate) mod processes;
mod progress;
mod session;

use asking::{Answer, Asking};
use plan::Task;
use progress::Progress;

/// Descriptors that 100,000 connections need, of a process that has one for each, with room.
const DESCRIPTORS: u64 = 262_144;

/// A run, from its first measurement or from where another left off.
pub(crate) struct Run {
    pub(crate) questions: Vec<Question>,
    pub(crate) entries: Vec<Entry>,
    /// What is known so far; its cells are the questions', its stacks the entries'.
    pub(crate) report: Report,
    pub(crate) output: Option<PathBuf>,
}

impl Run {
    /// Takes up the report that `path` holds.
    ///
    /// # Errors
    /// It is another run's.
    pub(crate) fn resume(&mut self, path: &Path) -> Result<()> {
        let earlier = report::read_json(path)?;
        let differs = |what: &str| -> Result<()> {
            bail!(
                "{} is a run with other {what} (try: the options that it was begun with, or another --output)",
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

    /// Writes what is known so far, where it is wanted.
    ///
    /// # Errors
    /// As [`report::write_json`].
    pub(crate) fn write(&self) -> Result<()> {
        match &self.output {
            Some(path) => report::write_json(&self.report, path),
            None => Ok(()),
        }
    }

    /// Makes the measurements that are left. The caller is alone in new namespaces.
    ///
    /// # Errors
    /// The network cannot be built, or the report cannot be written.
    pub(crate) fn execute(&mut self, enclosure: &Enclosure) -> Result<()> {
        raise_descriptors();
        let mut host = Host::new(enclosure.clone())?;
        let tasks = plan::left(&self.report);
        let duration = self.report.plan.duration;
        let cost = |task: &Task| self.questions[task.cell].seconds(duration);
        let mut progress = Progress::start(tasks.len(), tasks.iter().map(cost).sum());
        for task in tasks {
            let question = &self.questions[task.cell];
            let entry = &self.entries[task.stack];
            let stack = entry.stack.as_deref().context("a stack is missing")?;
            progress.announce(&question.cell.name, &entry.described.name);
            let sample = self.measure(&mut host, question, stack, &entry.described.name, task.round);
            progress.report(&sample, &question.cell.figure, question.seconds(duration));
            self.report.samples.push(sample);
            self.report.ended = now();
            self.write()?;
        }
        progress.finish();
        Ok(())
    }

    fn measure(
        &self,
        host: &mut Host,
        question: &Question,
        stack: &dyn Stack,
        name: &str,
        round: u32,
    ) -> Sample {
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let answer = self.ask(host, question, stack, name, round);
        if matches!(answer.outcome, Outcome::Stalled { .. } | Outcome::Failed { .. }) {
            host.renew_servers();
        }
        Sample {
            cell: question.cell.name.clone(),
            stack: name.to_owned(),
            round,
            at_ms: (begun.as_millis() as u64).saturating_sub(self.report.began * 1000),
            outcome: answer.outcome,
            values: answer.values,
            histograms: answer.histograms,
            trials: answer.trials,
            conditions: answer.conditions,
        }
    }

    fn ask(&self, host: &mut Host, question: &Question, stack: &dyn Stack, name: &str, round: u32) -> Answer {
        let congestion_control = match host.prepare(question.congestion_control) {
            Ok(name) => name,
            Err(error) => return Answer::unreachable(format!("{error:#}")),
        };
        let ports = match host.ports(&congestion_control) {
            Ok(ports) => ports,
            Err(error) => return Answer::failed(format!("{error:#}")),
        };
        let asking = Asking {
            host,
            stack,
            ports,
            congestion_control,
            duration: self.report.plan.duration,
            unit: question.unit,
            wish: Wish {
                mtu: question.mtu,
                publish: question.publish.then(|| host.port_to_publish()),
            },
            earlier: self
                .report
                .samples
                .iter()
                .filter(|sample| sample.stack == name && sample.round == round)
                .collect(),
        };
        (question.ask)(&asking)
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// As many descriptors as this user may have, and root what the largest cell needs.
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
