//! Runs the tests of the links, and fuzz targets with hostile guests, under AddressSanitizer.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::fuzz;
use crate::rustup::nightly;

/// The target, given explicitly: without `--target`, build scripts and macros would be instrumented too.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Fuzz targets whose code reads a guest's memory.
const GUESTS: [&str; 2] = ["vhost_user_chains", "vhost_user_messages"];

/// Time limit of each fuzz target.
const FUZZED: Duration = Duration::from_secs(30);

/// Returns the steps, in order: name and command.
pub(crate) fn steps(workspace: &Path) -> Result<Vec<(String, Command)>> {
    let test = ["test", "--lib", "--tests", "--target", TARGET];
    let packages = [
        "-p",
        "pontoon-event",
        "-p",
        "pontoon-host",
        "-p",
        "pontoon-link",
        "-p",
        "pontoon-sys",
        "-p",
        "pontoon-vhost-user",
        "-p",
        "pontoon-worker",
    ];
    let mut links = nightly(&[&test[..], &packages[..]].concat());
    links
        .env("RUSTFLAGS", "-Zsanitizer=address")
        // AddressSanitizer's shadow memory exceeds the sandbox's limit.
        .env("PONTOON_DISABLE", "limits")
        .env("CARGO_TARGET_DIR", workspace.join("target/asan"));
    let mut steps = vec![("links: memory (AddressSanitizer)".to_owned(), links)];
    for target in GUESTS {
        steps.push((format!("fuzz: {target}"), fuzz::command(target, FUZZED)?));
    }
    Ok(steps)
}
