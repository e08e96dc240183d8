//! Cases with programs that download from the Internet, through the machine's own network.

use std::process::Command;

use anyhow::Result;

use crate::case::{Caller, Case, Context, Outcome};
use crate::process;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::may_skip("registry.apt-get", 90, apt_get)
            .on_machine()
            .caller(Caller::Root("apt-get wants to be root")),
        Case::may_skip("registry.pip", 90, pip).on_machine(),
    ]
    .into_iter()
    .map(Case::pontoon_only)
    .collect()
}

/// Downloads the package lists of apt into a directory of the case.
fn apt_get(context: &Context) -> Result<Outcome> {
    let line = "lists=$(mktemp -d) && chmod 755 $lists && mkdir $lists/partial && \
                apt-get -o Dir::State::Lists=$lists -o Acquire::Retries=2 -o APT::Update::Error-Mode=any update; \
                status=$?; rm -r $lists; exit $status";
    fetch(context, line)
}

fn pip(context: &Context) -> Result<Outcome> {
    let line = "to=$(mktemp -d) && pip3 download --quiet --no-deps --no-cache-dir --dest $to six; \
                status=$?; rm -r $to; exit $status";
    fetch(context, line)
}

/// Runs the shell command `line` in the guest. If it fails both there and on the host, the machine is offline and the
/// case is skipped.
fn fetch(context: &Context, line: &str) -> Result<Outcome> {
    let mut inside = context.program.command()?;
    let Err(error) = process::output(inside.args(["run", "--", "sh", "-c", line])) else {
        return Ok(Outcome::Passed);
    };
    if process::output(Command::new("sh").args(["-c", line])).is_err() {
        return Ok(Outcome::Skipped(
            "it fails outside too: the machine seems to be offline".to_string(),
        ));
    }
    Err(error)
}
