//! Licences, duplicates, sources and known vulnerabilities of the dependencies (cargo-deny, `deny.toml`).

use std::process::Command;

use crate::{cargo, step};

/// The version that `deny.toml` is written for.
const VERSION: &str = "cargo-deny@0.20.2";

/// The database of known vulnerabilities.
const DATABASE: &str = "https://github.com/RustSec/advisory-db";

/// Returns the command that installs cargo-deny, or `None` if it is installed.
pub(crate) fn installation() -> Option<Command> {
    if step::succeeds(&mut cargo(&["deny", "--version"])) {
        return None;
    }
    Some(crate::install(VERSION))
}

/// The steps, in order: name and command. The second value is the reason for which the check for vulnerabilities is
/// skipped, if it is.
pub(crate) fn steps() -> (Vec<(&'static str, Command)>, Option<String>) {
    let mut steps = Vec::new();
    let check = ["deny", "check", "bans", "licenses", "sources"];
    steps.push(("dependencies: licences, duplicates, sources", cargo(&check)));
    let mut reach = Command::new("git");
    reach.args(["ls-remote", "--exit-code", DATABASE, "HEAD"]);
    if !step::succeeds(&mut reach) {
        let why = format!("dependencies: known vulnerabilities: cannot reach {DATABASE}");
        return (steps, Some(why));
    }
    steps.push((
        "dependencies: known vulnerabilities",
        cargo(&["deny", "check", "advisories"]),
    ));
    (steps, None)
}
