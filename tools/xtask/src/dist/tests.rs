use std::fs;

use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the text of the error for a command line.
fn refused(text: &str) -> String {
    let error = format!("{:#}", parse(&words(text)).unwrap_err());
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

#[test]
fn all_targets_are_built_unless_some_are_named() {
    let triples = |text: &str| -> Vec<&str> {
        let targets = parse(&words(text)).unwrap().targets;
        targets.iter().map(|target| target.triple).collect()
    };
    assert_eq!(triples("--check").len(), TARGETS.len());
    assert_eq!(
        triples("--target aarch64-unknown-linux-musl"),
        ["aarch64-unknown-linux-musl"]
    );
    assert!(triples("--library").is_empty());
}

#[test]
fn unknown_targets_and_options_are_refused_in_one_line() {
    assert_eq!(
        refused("--target riscv64gc-unknown-linux-gnu"),
        "no packages for target riscv64gc-unknown-linux-gnu (try: x86_64-unknown-linux-musl, aarch64-unknown-linux-musl)"
    );
    assert_eq!(
        refused("--library --target aarch64-unknown-linux-musl"),
        "--library is for this machine's target only"
    );
    assert!(refused("--target").starts_with("--target: no target"));
    assert!(refused("--output").starts_with("--output: no directory"));
    assert!(refused("--fast").starts_with("unknown argument --fast (try: cargo xtask dist"));
}

#[test]
fn output_directory_that_cannot_be_written_is_an_error_in_one_line() {
    // No user may create files in /proc, root included.
    for (path, expected) in [
        ("/proc/pontoon", "cannot create /proc/pontoon: "),
        ("/proc", "cannot write to /proc: "),
        ("/dev/null/packages", "cannot create /dev/null/packages: "),
    ] {
        let error = format!("{:#}", create(path.as_ref()).unwrap_err());
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn only_packages_are_removed_from_the_output_directory() {
    let directory = tempfile::tempdir().unwrap();
    for name in [
        "pontoon_0.1.0-1_amd64.deb",
        "libpontoon0_0.1.0-1_amd64.deb",
        "SHA256SUMS",
        "notes",
    ] {
        fs::write(directory.path().join(name), "").unwrap();
    }
    create(directory.path()).unwrap();
    let left: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["notes"]);
}
