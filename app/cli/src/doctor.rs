//! Verb `pontoon doctor`: checks of the host and of the search path, as text or JSON.

use std::env;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use pontoon_supervisor::doctor::{self, Report};
use pontoon_sys::disabled::Disabled;

use crate::args::DoctorArgs;
use crate::{compat, end};

mod programs;

pub(crate) fn run(arguments: &DoctorArgs) -> ExitCode {
    end(report().and_then(|report| print(&report, arguments.json)))
}

fn report() -> anyhow::Result<Report> {
    let disabled = Disabled::from_env()?;
    let mut checks = doctor::examine(&disabled);
    let path = env::var_os("PATH").unwrap_or_default();
    let directories: Vec<_> = env::split_paths(&path).collect();
    checks.push(programs::check(&directories, compat::names()));
    Ok(Report::new(env!("CARGO_PKG_VERSION"), checks))
}

/// Prints the report, and returns its exit status. A closed pipe is not an error.
fn print(report: &Report, json: bool) -> anyhow::Result<u8> {
    let text = match json {
        true => serde_json::to_string_pretty(report)? + "\n",
        false => report.to_string(),
    };
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write the report")
        }
        _ => Ok(report.status()),
    }
}
