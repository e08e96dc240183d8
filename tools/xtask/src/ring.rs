//! Checks of the ring and the guest library that need other builds: all interleavings (loom), undefined behaviour
//! (Miri), builds without std.

use std::path::Path;
use std::process::Command;

use crate::rustup::{BARE, nightly};

/// Returns the steps, in order: name and command.
pub(crate) fn steps(cargo: impl Fn(&[&str]) -> Command, workspace: &Path) -> Vec<(&'static str, Command)> {
    let mut loom = cargo(&["test", "-p", "pontoon-ring", "--test", "loom"]);
    // loom has its own build directory, as the flag would cause a rebuild of all packages in the shared one.
    loom.env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", workspace.join("target/loom"));
    let mut steps = vec![("ring: all interleavings (loom)", loom)];

    let miri = nightly(&["miri", "test", "-p", "pontoon-ring", "--tests"]);
    steps.push(("ring: undefined behaviour (Miri)", miri));
    let guest = [
        "miri",
        "test",
        "-p",
        "pontoon-guest",
        "--no-default-features",
        "--features",
        "smoltcp",
        "--lib",
        "--test",
        "hostile",
    ];
    steps.push(("guest: undefined behaviour (Miri)", nightly(&guest)));

    for (name, package) in [
        ("ring: no std", "pontoon-ring"),
        ("guest: no std", "pontoon-guest"),
        ("guest for C: no std", "pontoon-guest-c"),
    ] {
        let bare = ["build", "-p", package, "--no-default-features", "--target", BARE];
        steps.push((name, cargo(&bare)));
    }
    steps
}
