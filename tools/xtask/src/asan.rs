//! The links, and hostile guests behind them, under AddressSanitizer.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::fuzz;
use crate::rustup::nightly;

/// The explicit target: without `--target`, build scripts and macros would be sanitized too.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Fuzz targets that read a guest's memory.
const GUESTS: [&str; 2] = ["vhost_user_chains", "vhost_user_messages"];

/// The duration for each of them.
const FUZZED: Duration = Duration::from_secs(30);

/// The steps, in order: name and command.
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
