//! Rust toolchains and targets besides the toolchain that runs xtask.

use std::process::Command;

use crate::{step, workspace};

/// A target without an operating system and std.
pub(crate) const BARE: &str = "x86_64-unknown-none";

/// Returns a command for the cargo of nightly Rust. `rustup run` is necessary: `RUSTUP_TOOLCHAIN` already selects the
/// toolchain of this process, and `rust-toolchain.toml` would select it again.
pub(crate) fn nightly(arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", "cargo"])
        .args(arguments)
        .current_dir(workspace());
    command
}

/// Returns the command that installs [`BARE`], the target of the guest of `examples/microvm`.
pub(crate) fn install_bare() -> Command {
    let mut target = Command::new("rustup");
    target.args(["target", "add", BARE]);
    target
}

/// Returns the command that installs nightly Rust with Miri, or `None` if they are installed.
pub(crate) fn install_nightly() -> Option<Command> {
    if step::succeeds(&mut nightly(&["miri", "--version"])) {
        return None;
    }
    let mut install = Command::new("rustup");
    install.args(["toolchain", "install", "nightly", "--no-self-update"]);
    install.args(["--profile", "minimal", "--component", "miri,rust-src"]);
    Some(install)
}
