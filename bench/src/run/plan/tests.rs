use super::*;
use crate::schema::{
    Calibration, Cell, Conditions, Machine, Plan, Sample, SampleOutcome, StackDescription, VERSION,
};

/// Returns the report of a plan with two rounds of two cells, the second cell measured once, and the stacks a, b (not
/// installed) and c.
fn report() -> BenchmarkReport {
    let cell = |name: &str, once| Cell {
        name: name.to_owned(),
        scenario: name.to_owned(),
        parameters: [].into(),
        figure: "p50_us".to_owned(),
        once,
    };
    let stack = |name: &str, missing: Option<&str>| StackDescription {
        name: name.to_owned(),
        role: Default::default(),
        version: String::new(),
        command: String::new(),
        missing: missing.map(str::to_owned),
    };
    BenchmarkReport {
        version: VERSION,
        generator: String::new(),
        began: 0,
        ended: 0,
        command: String::new(),
        plan: Plan {
            rounds: 2,
            duration: 1.0,
            scenarios: Vec::new(),
            stacks: Vec::new(),
        },
        machine: Machine::default(),
        calibration: Calibration::default(),
        stacks: vec![stack("a", None), stack("b", Some("gone")), stack("c", None)],
        cells: vec![cell("rr", false), cell("hash", true)],
        samples: Vec::new(),
        backends: Vec::new(),
    }
}

fn sample(report: &BenchmarkReport, task: PlannedSample) -> Sample {
    Sample {
        cell: report.cells[task.cell].name.clone(),
        stack: report.stacks[task.stack].name.clone(),
        round: task.round,
        at_ms: 0,
        outcome: SampleOutcome::Measured,
        values: [].into(),
        histograms: [].into(),
        trials: Vec::new(),
        conditions: Conditions::default(),
    }
}

fn numbers(tasks: &[PlannedSample]) -> Vec<(u32, usize, usize)> {
    tasks
        .iter()
        .map(|task| (task.round, task.cell, task.stack))
        .collect()
}

#[test]
fn tasks_are_ordered_by_round_then_cell_then_stack() {
    let tasks = left(&report());
    assert_eq!(
        numbers(&tasks),
        [(0, 0, 0), (0, 0, 2), (0, 1, 0), (0, 1, 2), (1, 0, 0), (1, 0, 2)]
    );
}

#[test]
fn measurements_with_a_sample_are_skipped() {
    let mut report = report();
    for task in left(&report).into_iter().take(3) {
        report.samples.push(sample(&report, task));
    }
    assert_eq!(numbers(&left(&report)), [(0, 1, 2), (1, 0, 0), (1, 0, 2)]);
}
