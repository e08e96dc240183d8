//! Licences, duplicates, sources and known vulnerabilities of what is linked in (cargo-deny, `deny.toml`).

use std::process::Command;

use crate::step;

/// The version that `deny.toml` is written for.
const VERSION: &str = "cargo-deny@0.20.2";

/// Where known vulnerabilities are listed.
const DATABASE: &str = "https://github.com/RustSec/advisory-db";

/// The steps, in order: name and command. Where cargo-deny is missing, it is installed first. The second value says why
/// vulnerabilities are not looked for, where they are not.
pub(crate) fn steps(cargo: impl Fn(&[&str]) -> Command) -> (Vec<(&'static str, Command)>, Option<String>) {
    let mut steps = Vec::new();
    if !step::answers(&mut cargo(&["deny", "--version"])) {
        steps.push(("install cargo-deny", cargo(&["install", "--locked", VERSION])));
    }
    let check = ["deny", "check", "bans", "licenses", "sources"];
    steps.push(("dependencies: licences, duplicates, sources", cargo(&check)));
    let mut reach = Command::new("git");
    reach.args(["ls-remote", "--exit-code", DATABASE, "HEAD"]);
    if !step::answers(&mut reach) {
        let why = format!("dependencies: known vulnerabilities: cannot reach {DATABASE}");
        return (steps, Some(why));
    }
    steps.push((
        "dependencies: known vulnerabilities",
        cargo(&["deny", "check", "advisories"]),
    ));
    (steps, None)
}
