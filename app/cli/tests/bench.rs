//! Tests of `pontoon bench`, which executes `pontoon-bench`.

#![expect(
    clippy::unwrap_used,
    reason = "all of this is tests; clippy knows only the functions marked so"
)]

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Copies a file by a separate process: if this process had the copy open for writing while another test forks, the child
/// would inherit the descriptor, and the copy could not be executed (ETXTBSY).
fn install(source: &Path, target: &Path) {
    let status = Command::new("install")
        .args(["-m", "755"])
        .args([source, target])
        .status();
    assert!(status.unwrap().success());
}

/// Returns a directory with a copy of `pontoon`, and an empty directory `path`.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("path")).unwrap();
    install(
        env!("CARGO_BIN_EXE_pontoon").as_ref(),
        &directory.path().join("pontoon"),
    );
    directory
}

fn script(directory: &Path, text: &str) {
    let source = directory.join("source");
    std::fs::write(&source, format!("#!/bin/sh\n{text}\n")).unwrap();
    install(&source, &directory.join("pontoon-bench"));
    std::fs::remove_file(source).unwrap();
}

/// Runs `pontoon bench` with the directory `path` as the search path.
fn bench(directory: &TempDir, arguments: &[&str]) -> Output {
    Command::new(directory.path().join("pontoon"))
        .arg("bench")
        .args(arguments)
        .env("PATH", directory.path().join("path"))
        .output()
        .unwrap()
}

#[test]
fn executes_pontoon_bench_beside_pontoon_or_on_path() {
    for place in ["", "path"] {
        let directory = directory();
        script(&directory.path().join(place), "echo \"$@\"; exit 3");
        for arguments in [
            &["rr", "--rounds", "1"][..],
            &["--help"],
            &["list", "--profile=full"],
            &[],
        ] {
            let output = bench(&directory, arguments);
            assert_eq!(output.status.code(), Some(3));
            assert_eq!(
                String::from_utf8_lossy(&output.stdout).trim_end(),
                arguments.join(" ")
            );
        }
    }
}

#[test]
fn reports_missing_pontoon_bench_with_status_127() {
    let output = bench(&directory(), &["rr"]);
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: pontoon-bench is neither beside pontoon nor on PATH (try: cargo build --release -p pontoon-bench)\n"
    );
}
