//! Tests of `pontoon man` and `pontoon completions` as programs.

#![expect(
    clippy::unwrap_used,
    reason = "all of this is tests; clippy knows only the functions marked so"
)]

use std::fs;
use std::process::{Command, Output};

/// Returns the status, standard output and standard error of a command line.
fn pontoon(words: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_pontoon"))
        .args(words)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Asserts that a command line prints nothing but `expected`, one line on standard error.
fn refused(words: &[&str], status: i32, expected: &str) {
    let (code, printed, error) = pontoon(words);
    assert_eq!((code, printed.as_str()), (Some(status), ""), "{words:?}: {error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn pages_are_printed_and_written() {
    let (status, run, error) = pontoon(&["man", "run"]);
    assert_eq!((status, error.as_str()), (Some(0), ""));
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join("share/man1");
    let (status, printed, error) = pontoon(&["man", "--output", below.to_str().unwrap()]);
    assert_eq!((status, printed.as_str(), error.as_str()), (Some(0), "", ""));
    assert_eq!(fs::read_to_string(below.join("pontoon-run.1")).unwrap(), run);
    for page in [
        "pontoon",
        "pontoon-ctl-flows",
        "pontoon-pasta",
        "pontoon-slirp4netns",
    ] {
        assert!(below.join(format!("{page}.1")).is_file(), "{page}");
    }
}

#[test]
fn unknown_page_is_refused_in_one_line() {
    refused(
        &["man", "fly"],
        2,
        "error: no manual page for 'fly' (try: run, vm, ctl, ",
    );
    refused(
        &["man", "ctl", "fly"],
        2,
        "error: no manual page for 'ctl fly' (try: run, ",
    );
}

#[test]
fn directory_that_cannot_be_written_is_an_error_in_one_line() {
    // Root may write to directories of any mode, but no user can create a directory in /proc.
    refused(
        &["man", "--output", "/proc/pontoon/man1"],
        1,
        "error: cannot create /proc/pontoon/man1: ",
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    refused(
        &["man", "--output", path],
        1,
        &format!("error: cannot create {path}: "),
    );
}

#[test]
fn unknown_shell_is_refused_in_one_line() {
    refused(
        &["completions", "tcsh"],
        2,
        "error: invalid value 'tcsh' for '<SHELL>' [possible values: bash, fish, zsh] (try: pontoon completions --help)",
    );
    refused(
        &["completions"],
        2,
        "error: the following required arguments were not provided: <SHELL> (try: pontoon completions --help)",
    );
}

#[test]
fn reader_that_closes_early_is_not_an_error() {
    for words in [&["man"][..], &["completions", "bash"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_pontoon"))
            .args(words)
            .stdout(writer)
            .output()
            .unwrap();
        assert_eq!(
            (output.status.code(), output.stderr.as_slice()),
            (Some(0), &b""[..])
        );
    }
}
