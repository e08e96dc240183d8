//! Tests of the table of `pontoon bench exits`. The virtual machine itself is tested in `examples/microvm`.

use super::*;

#[test]
fn doorbell_is_counted_once() {
    let result: RunResult = serde_json::from_str(
        r#"{"address": "10.0.2.15", "done": 200, "sent": 200, "doorbells": 40, "returns": 50,
            "kvm": {"halts": 6, "interrupts": 4, "exits": 1000000}}"#,
    )
    .unwrap();
    assert_eq!(result.exits(FramePath::Passed), 60, "the VMM handles them");
    assert_eq!(result.exits(FramePath::Direct), 100);
    let table = table::markdown(&[(GuestTask::Send, FramePath::Direct, result)]);
    let row = "| send 64 B | virtio, ioeventfd and irqfd | 200 | 50 | 40 | 6 | 4 | 0.500 |";
    assert!(table.lines().any(|line| line == row), "{table}");
    let json = table::json(&[(GuestTask::Send, FramePath::Direct, result)]);
    let row = &json["rows"][0];
    assert_eq!(
        (&row["task"], &row["doorbells"]),
        (&"send 64 B".into(), &40.into())
    );
    assert_eq!(row["exits_each"], 0.5);
}

#[test]
fn frame_paths_have_distinct_arguments() {
    let arguments: Vec<_> = LINKS.map(FramePath::arguments).into();
    for (at, one) in arguments.iter().enumerate() {
        assert!(!arguments[..at].contains(one), "{one:?}");
    }
    assert_eq!(TASKS.map(GuestTask::argument), ["send", "receive", "crr"]);
}
