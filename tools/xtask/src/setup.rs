//! `cargo xtask setup`: installs what the tests need: Debian packages, the unprivileged user, toolchains, targets, cargo
//! subcommands and the kernels of virtual machines.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{deny, fuzz, install, kernel, library, packages, rustup, step, target};

/// The unprivileged user of the end-to-end tests.
pub(crate) const USER: &str = "pontoon-test";

const INSTALL: Duration = Duration::from_secs(15 * 60);

/// Installs what is missing.
///
/// # Errors
///
/// If an installation fails, or without root if a package is missing or `/dev/net/tun` cannot be opened: the message
/// contains the command that root has to execute.
pub(crate) fn run() -> Result<()> {
    packages::install(packages::NEEDED)?;
    // Without root, the end-to-end tests run as the caller only.
    if rustix::process::geteuid().is_root() {
        home_of_user()?;
    }
    let mut steps = vec![("install Rust without std", rustup::install_bare())];
    let nightly = rustup::install_nightly();
    steps.extend(nightly.map(|install| ("install nightly Rust with Miri", install)));
    if !fuzz::installed() {
        steps.push(("install cargo-fuzz", install("cargo-fuzz")));
    }
    steps.extend(deny::installation().map(|install| ("install cargo-deny", install)));
    steps.extend(library::installation().map(|install| ("install cbindgen", install)));
    for (name, mut command) in steps {
        if !step::run(name, &mut command, INSTALL)? {
            bail!("{name}: failed");
        }
    }
    kernel::fetch(&target())?;
    kernel::recent(&target())?;
    Ok(())
}

/// Returns the home directory of [`USER`].
pub(crate) fn home_of_user() -> Result<String> {
    if let Some(home) = passwd_home()? {
        return Ok(home);
    }
    let mut useradd = Command::new("useradd");
    useradd.args(["--create-home", "--shell", "/bin/sh", USER]);
    if !step::run(
        &format!("make user {USER}"),
        &mut useradd,
        Duration::from_secs(30),
    )? {
        bail!("cannot make user {USER}");
    }
    passwd_home()?.with_context(|| format!("useradd made no {USER}"))
}

fn passwd_home() -> Result<Option<String>> {
    let users = std::fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    let user = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|user| user[0] == USER);
    Ok(user.and_then(|user| user.get(5).map(|home| (*home).to_string())))
}
