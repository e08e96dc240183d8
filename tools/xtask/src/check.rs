//! `cargo xtask check`: format, rules of the tree, lints, documentation comments, unit tests and documentation tests. It installs
//! nothing and needs no privilege.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::{cargo, layers, profiles, references, step, words};

const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Runs all steps; returns true if all passed.
pub(crate) fn run() -> Result<bool> {
    let mut failed = rules()?;
    let unit = cargo(&["test", "--workspace", "--no-fail-fast", "--lib", "--bins"]);
    let documentation = cargo(&["test", "--workspace", "--no-fail-fast", "--doc"]);
    let mut steps = lints();
    steps.push(("unit tests", unit));
    steps.push(("documentation tests", documentation));
    for (name, mut command) in steps {
        failed += u32::from(!step::run(name, &mut command, LIMIT)?);
    }
    Ok(failed == 0)
}

/// Checks the dependencies between crates, the words, the references in documents, and the generated profiles; returns the number of rules that are broken.
pub(crate) fn rules() -> Result<u32> {
    eprintln!("--- layers");
    let layers = layers::check()?;
    eprintln!("--- words");
    let words = words::check()?;
    eprintln!("--- references");
    let references = references::check()?;
    eprintln!("--- profiles");
    let profiles = profiles::check()?;
    let broken = [layers, words, references, profiles].map(|sound| u32::from(!sound));
    Ok(broken.iter().sum())
}

/// The format check, clippy, and a check of the references in documentation comments: name and command.
pub(crate) fn lints() -> Vec<(&'static str, Command)> {
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    let mut rustdoc = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
    rustdoc.env("RUSTDOCFLAGS", "-D warnings");
    // Cargo skips the program among all packages: the crate `pontoon` is documented at its place.
    let mut program = cargo(&["doc", "-p", "pontoon-cli", "--bin", "pontoon", "--no-deps"]);
    program
        .arg("--document-private-items")
        .env("RUSTDOCFLAGS", "-D warnings");
    vec![
        ("format", cargo(&["fmt", "--all", "--check"])),
        ("lints", cargo(&clippy)),
        ("documentation comments of the program", program),
        ("documentation comments", rustdoc),
    ]
}
