//! The rows and the table. That all of it can be measured is a test of the program's.

use super::*;

#[test]
fn rows_are_measured_in_turn() {
    let seen: Vec<_> = cases().iter().map(|case| (case.task, case.link)).collect();
    assert_eq!(seen.len(), 4 + 4 + 4 + 3 + 2);
    assert_eq!(seen[0], (Task::Receive, Link::Packet));
    assert_eq!(seen[16], (Task::Idle, Link::Memory(Pacing::Hybrid)));
}

#[test]
fn a_median_is_of_each_figure() {
    let sample = |rate, guest| Sample {
        rate,
        kicks: 0.0,
        calls: 0.0,
        guest,
        device: 1.0,
    };
    let median = Sample::median(&[sample(1.0, 0.5), sample(3.0, 0.1), sample(2.0, 0.9)]);
    assert_eq!((median.rate, median.guest, median.device), (2.0, 0.5, 1.0));
}

#[test]
fn a_row_says_what_was_measured() {
    let case = |task, link| Case { task, link };
    let cases = [
        case(Task::Receive, Link::Packet),
        case(Task::Send(32), Link::Memory(Pacing::Event)),
        case(Task::Idle, Link::Memory(Pacing::Hybrid)),
    ];
    let sample = Sample {
        rate: 1_234_567.0,
        kicks: 0.012_34,
        calls: 0.0,
        guest: 0.984,
        device: 0.5,
    };
    let table = table::markdown(&cases, &[sample; 3]);
    let rows: Vec<_> = table.lines().filter(|line| line.ends_with("% |")).collect();
    let expected = [
        "| receive 1300 B | packet socket | 1,230,000 | a call each | a call each | 98 % | 50 % |",
        "| send 64 B, flushed by 32 | memory, event | 1,230,000 | 0.0123 | 0 | 98 % | 50 % |",
        "| idle | memory, hybrid | - | - | - | 98 % | 50 % |",
    ];
    assert_eq!(rows, expected);
}
