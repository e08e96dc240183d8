//! Targets and cargo subcommands that build the packages.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use super::Target;
use crate::{cargo, install, step, workspace};

/// Cargo subcommands, and the versions whose files these packages are tested with.
const SUBCOMMANDS: &[(&str, &str)] = &[
    ("deb", "cargo-deb@3.8.0"),
    ("generate-rpm", "cargo-generate-rpm@0.21.1"),
    ("cyclonedx", "cargo-cyclonedx@0.5.9"),
];

const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Installs what is missing.
///
/// # Errors
///
/// An installation fails.
pub(super) fn install_missing(targets: &[&Target]) -> Result<()> {
    let mut steps = Vec::new();
    if !targets.is_empty() {
        let mut add = Command::new("rustup");
        add.args(["target", "add"]).current_dir(workspace());
        add.args(targets.iter().map(|target| target.triple));
        steps.push(("install Rust for the targets of packages".to_owned(), add));
    }
    for (subcommand, package) in SUBCOMMANDS {
        if !step::succeeds(&mut cargo(&[subcommand, "--help"])) {
            steps.push((format!("install {package}"), install(package)));
        }
    }
    for (name, mut command) in steps {
        if !step::run(&name, &mut command, LIMIT)? {
            bail!("{name}: failed");
        }
    }
    Ok(())
}
