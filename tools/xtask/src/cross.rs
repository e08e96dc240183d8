//! Builds for another architecture: static programs with musl, linked by the linker of the Rust toolchain.

use std::path::PathBuf;
use std::process::Command;

use crate::{cargo, target};

/// Rust's target for aarch64.
pub(crate) const AARCH64: &str = "aarch64-unknown-linux-musl";

/// Returns the command that installs the standard library for [`AARCH64`].
pub(crate) fn install() -> Command {
    let mut install = Command::new("rustup");
    install.args(["target", "add", AARCH64]);
    install
}

/// Returns the command that builds the programs of `packages` for [`AARCH64`] with `profile`.
pub(crate) fn build(packages: &[&str], profile: &str) -> Command {
    let mut build = cargo(&["build", "--profile", profile]);
    build.args(packages.iter().flat_map(|package| ["-p", package]));
    link(build)
}

/// Returns the command that builds and runs tests for [`AARCH64`].
pub(crate) fn test() -> Command {
    link(cargo(&["test"]))
}

fn link(mut command: Command) -> Command {
    command.args(["--target", AARCH64]).env(
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUSTFLAGS",
        "-Clinker=rust-lld -Clink-self-contained=yes",
    );
    command
}

/// Returns the path of a program that [`build`] has built; `directory` is that of its profile.
pub(crate) fn program(directory: &str, name: &str) -> PathBuf {
    target().join(AARCH64).join(directory).join(name)
}
