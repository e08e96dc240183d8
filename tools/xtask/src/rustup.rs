//! What some steps need beside the toolchain that runs them.

use std::process::Command;

use crate::{step, workspace};

/// A target that has no std.
pub(crate) const BARE: &str = "x86_64-unknown-none";

/// Nightly's cargo: `rustup run`, as this process is some toolchain's cargo already.
pub(crate) fn nightly(arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", "cargo"])
        .args(arguments)
        .current_dir(workspace());
    command
}

/// Installs what programs without std are built by: the guest of `examples/microvm` is one.
pub(crate) fn install_bare() -> Command {
    let mut target = Command::new("rustup");
    target.args(["target", "add", BARE]);
    target
}

/// Installs the nightly toolchain with Miri, where it is missing.
pub(crate) fn install_nightly() -> Option<Command> {
    if step::answers(&mut nightly(&["miri", "--version"])) {
        return None;
    }
    let mut install = Command::new("rustup");
    install.args(["toolchain", "install", "nightly", "--no-self-update"]);
    install.args(["--profile", "minimal", "--component", "miri,rust-src"]);
    Some(install)
}
