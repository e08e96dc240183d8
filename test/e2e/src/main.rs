//! End-to-end tests of `pontoon`, with third-party programs and with the servers of [`server`].
//!
//! `pontoon-e2e --binary PATH [FILTER...]` runs the cases. Each case runs in its own process and its own network,
//! mount and PID namespaces (inside of a user namespace if the caller is not root), so that it may set addresses and
//! sysctls, cannot disturb other cases, and leaves nothing when it is killed at its deadline. The same program is the
//! guest's side of the tests: `pontoon-e2e guest ...` runs inside of `pontoon run`.

mod boot;
mod carrier;
mod case;
mod cases;
mod counters;
mod figures;
mod guest;
mod http;
#[cfg(target_arch = "x86_64")]
mod inject;
mod lint;
mod machine;
mod network;
mod page;
mod pattern;
mod probe;
mod process;
mod qemu;
mod run;
mod runner;
mod server;
mod strace;
mod sys;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<bool> {
    match arguments.first().map(String::as_str) {
        Some("guest") => guest::run(&arguments[1..]).map(|()| true),
        Some("figures") => figures::run(&arguments[1..]),
        Some("boot") => boot::run(&arguments[1..]),
        Some("probe") => {
            probe::run(arguments.get(1).context("usage: pontoon-e2e probe NAME")?).map(|()| true)
        }
        Some("case") => runner::run_one(&arguments[1..]).map(|()| true),
        _ => runner::run_list(&options(arguments)?),
    }
}

/// Returns the path of the program under test as the kernel shows it in /proc/PID/exe, by which its processes are
/// found.
fn as_the_kernel_names(path: &str) -> Result<String> {
    let path = std::fs::canonicalize(path).with_context(|| format!("cannot find {path}"))?;
    Ok(path.to_str().context("the path is not UTF-8")?.to_string())
}

/// Options of the command line that runs the cases.
struct Options {
    /// Path of the program under test; `None` replaces it by plain veth, to test the tests.
    binary: Option<String>,
    /// Only cases whose name contains one of these texts are run; all if it is empty.
    filters: Vec<String>,
    /// Cases whose name begins with one of these texts are not run.
    excluded: Vec<String>,
    /// True if the names of the cases are printed and no case is run.
    list: bool,
    /// Factor of the cases' deadlines, for a slow machine.
    slow: u32,
    /// Number of cases that run side by side, unless they wait or run alone.
    beside: usize,
}

fn options(arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        binary: None,
        filters: Vec::new(),
        excluded: Vec::new(),
        list: false,
        slow: 1,
        beside: runner::BESIDE,
    };
    let mut direct = false;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--binary" => {
                let path = rest.next().context("--binary needs a path")?;
                options.binary = Some(as_the_kernel_names(path)?);
            }
            "--except" => {
                let prefix = rest.next().context("--except needs the beginning of names")?;
                options.excluded.push(prefix.clone());
            }
            "--slow" => options.slow = rest.next().context("--slow needs a factor")?.parse()?,
            "--beside" => options.beside = rest.next().context("--beside needs a number")?.parse()?,
            "--direct" => direct = true,
            "--list" => options.list = true,
            flag if flag.starts_with('-') => bail!("unknown option {flag}"),
            filter => options.filters.push(filter.to_string()),
        }
    }
    if options.binary.is_none() && !direct && !options.list {
        bail!(
            "usage: pontoon-e2e (--binary PATH | --direct) [--list] [--slow FACTOR] [--beside NUMBER] \
             [--except PREFIX]... [FILTER...]"
        );
    }
    Ok(options)
}
