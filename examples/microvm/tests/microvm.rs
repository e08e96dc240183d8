//! Tests that run `pontoon-microvm` as a program.

// An unexpected error fails the test.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

/// Runs the program and returns its JSON result. Prints that the test is skipped if there is no KVM.
fn run(arguments: &str) -> Option<serde_json::Value> {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_pontoon-microvm"))
        .args(arguments.split_whitespace())
        .arg("--json")
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{arguments}: {complaint}");
    if !Path::new("/dev/kvm").exists() {
        assert!(complaint.contains("there is no /dev/kvm here"), "{complaint}");
        eprintln!("skipped: {complaint}");
        return None;
    }
    let outcome = serde_json::from_slice(&stdout).unwrap();
    eprintln!("{arguments}: {outcome}");
    Some(outcome)
}

#[test]
fn guest_gets_an_address_and_ping_replies() {
    let Some(outcome) = run("--task ping --count 3") else {
        return;
    };
    assert_eq!(outcome["address"], "10.0.2.15");
    assert_eq!(outcome["done"], 3);
}

#[test]
fn guest_opens_a_hundred_connections() {
    let Some(outcome) = run("--task crr --count 100") else {
        return;
    };
    assert_eq!(outcome["done"], 100);
    assert_eq!(
        outcome["returns"], 0,
        "notifications and interrupts do not involve the VMM"
    );
}

#[test]
fn guest_connects_through_the_vmm() {
    for link in ["--doorbells vmm --interrupts vmm", "--link calls"] {
        let Some(outcome) = run(&format!("--task crr --count 20 {link}")) else {
            return;
        };
        assert_eq!(outcome["done"], 20, "{link}");
        let returns = outcome["returns"].as_u64().unwrap();
        assert!(returns >= 40, "{link}: {returns}");
    }
}

#[test]
fn batch_of_datagrams_takes_one_doorbell() {
    for task in ["send", "receive"] {
        let Some(outcome) = run(&format!("--task {task} --count 2000")) else {
            return;
        };
        let number = |name: &str| outcome[name].as_u64().unwrap();
        let frames = number("sent").max(number("received"));
        assert!(frames >= 1500, "{outcome}");
        assert!(number("doorbells") * 90 <= frames, "{outcome}");
    }
}
