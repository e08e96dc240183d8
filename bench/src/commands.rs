//! The subcommands of `pontoon-bench`: each function runs one of them and returns its exit status.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::args::{Bench, Compare, FirstByte, List, LoadClient, LoadServer, Measure, Stacks, TapGuest, Verb};
use crate::job::JobMessage;
use crate::report::Completeness;
use crate::run::{BenchmarkRun, now};
use crate::sandbox_ns::{SandboxNs, run_in_sandbox_ns};
use crate::scenario::{CellSpec, SCENARIOS};
use crate::schema::{BenchmarkReport, Plan, VERSION};
use crate::{exits, library, load, network, report, shm, stack, tap_guest, usage};

/// Exit status of a run in which at least one sample stalled or failed.
const BAD_SAMPLES: u8 = 3;

/// Runs the command line. Returns the exit status.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = match Bench::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage::report(&error),
    };
    match run(arguments) {
        Ok(status) => status.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Bench) -> Result<u8> {
    match arguments.verb {
        None => measure(arguments.measure),
        Some(Verb::Relay(relay)) => crate::relay::relay(&relay),
        Some(Verb::Compare(compare)) => self::compare(&compare),
        Some(Verb::List(list)) => self::list(&list),
        Some(Verb::Shm(arguments)) => shm::shm(&arguments),
        Some(Verb::Exits(arguments)) => {
            print(&exits::exits(&arguments)?)?;
            Ok(0)
        }
        Some(Verb::LoadServer(arguments)) => server(&arguments),
        Some(Verb::LoadClient(arguments)) => client(&arguments),
        Some(Verb::TapGuest(arguments)) => tap_guest(&arguments),
        Some(Verb::Library(arguments)) => library::run(&arguments).map(|()| 0),
        Some(Verb::FirstByte(arguments)) => first_byte(&arguments),
    }
}

fn measure(arguments: Measure) -> Result<u8> {
    let mut run = plan(&arguments);
    if !run.candidates.iter().any(|entry| entry.stack.is_some()) {
        bail!("no stack is installed (try: pontoon bench list)");
    }
    if let Some(path) = &arguments.output
        && path.exists()
    {
        if arguments.resume {
            run.resume(path)?;
        } else if report::read_json(path).is_ok_and(|earlier| Completeness::of(&earlier).is_partial()) {
            bail!(
                "{} contains an incomplete run (try: --resume, or remove it)",
                path.display()
            );
        }
    }
    for entry in &run.candidates {
        if let Some(why) = &entry.described.missing {
            eprintln!("warning: {} is not measured: {why}", entry.described.name);
        }
    }
    if Completeness::of(&run.report).is_taken() {
        return print_report(&run.report, arguments.html.as_deref());
    }
    // Writes the report before the first measurement: an unwritable path must not fail after minutes of
    // measuring.
    run.write()?;
    write_page(&run.report, arguments.html.as_deref())?;
    run_in_sandbox_ns(|sandbox_ns: &SandboxNs| {
        let result = run
            .execute(sandbox_ns)
            .and_then(|()| print_report(&run.report, arguments.html.as_deref()));
        result.unwrap_or_else(|error| {
            eprintln!("error: {error:#}");
            1
        })
    })
}

fn plan(arguments: &Measure) -> BenchmarkRun {
    let profile = arguments.stacks.profile;
    let candidates = stack::find(&arguments.stacks.wanted());
    let cells = cells(&arguments.stacks, &arguments.scenarios);
    let report = BenchmarkReport {
        version: VERSION,
        generator: concat!("pontoon bench ", env!("CARGO_PKG_VERSION")).to_owned(),
        began: now(),
        ended: now(),
        command: command_line(),
        plan: Plan {
            rounds: arguments.rounds.unwrap_or(profile.pick(6, 7)),
            duration: arguments.duration.unwrap_or(profile.pick(0.4, 1.0)),
            scenarios: arguments.scenarios.clone(),
            stacks: candidates
                .iter()
                .map(|entry| entry.described.name.clone())
                .collect(),
        },
        machine: crate::machine::describe(),
        calibration: load::calibrate(),
        stacks: candidates.iter().map(|entry| entry.described.clone()).collect(),
        cells: cells.iter().map(|spec| spec.cell.clone()).collect(),
        samples: Vec::new(),
        backends: Vec::new(),
    };
    BenchmarkRun {
        cells,
        candidates,
        report,
        output: arguments.output.clone(),
    }
}

/// Returns the cells of the named scenarios, or of all scenarios if none is named.
fn cells(stacks: &Stacks, named: &[String]) -> Vec<CellSpec> {
    SCENARIOS
        .iter()
        .filter(|scenario| named.is_empty() || named.iter().any(|name| name == scenario.name))
        .flat_map(|scenario| (scenario.cells)(stacks.profile))
        .collect()
}

/// Returns the command line of this process, quoted for a shell.
pub(crate) fn command_line() -> String {
    let quoted = std::env::args().map(|word| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,:".contains(letter);
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Prints the report's tables to standard output, and writes the HTML page if `html` is given. Returns the
/// exit status.
fn print_report(of: &BenchmarkReport, html: Option<&Path>) -> Result<u8> {
    print(&report::markdown(of))?;
    write_page(of, html)?;
    Ok(if Completeness::of(of).has_bad() {
        BAD_SAMPLES
    } else {
        0
    })
}

fn write_page(of: &BenchmarkReport, path: Option<&Path>) -> Result<()> {
    match path {
        Some(path) => {
            std::fs::write(path, report::html(of)).with_context(|| format!("cannot write {}", path.display()))
        }
        None => Ok(()),
    }
}

fn compare(arguments: &Compare) -> Result<u8> {
    let mut before = report::read_json(&arguments.before)?;
    let mut after = report::read_json(&arguments.after)?;
    match arguments.stacks.as_slice() {
        [] => {}
        [old, new] => {
            select_stack(&mut before, old, new)?;
            select_stack(&mut after, new, new)?;
        }
        _ => bail!("--stacks takes two names (try: --stacks pontoon-old,pontoon)"),
    }
    let text = report::compare(&before, &after);
    match &arguments.output {
        Some(path) => {
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?
        }
        None => print(&text)?,
    }
    Ok(0)
}

/// Removes all stacks but `stack` from a report, and renames that stack to `name`, so that two stacks can be
/// compared like two reports.
fn select_stack(report: &mut BenchmarkReport, stack: &str, name: &str) -> Result<()> {
    let names: Vec<_> = report.stacks.iter().map(|one| one.name.clone()).collect();
    report.stacks.retain(|one| one.name == stack);
    report.samples.retain(|sample| sample.stack == stack);
    let Some(found) = report.stacks.first_mut() else {
        bail!("no stack {stack} in the report (try: {})", names.join(", "));
    };
    found.name = name.to_owned();
    for sample in &mut report.samples {
        sample.stack = name.to_owned();
    }
    Ok(())
}

fn list(arguments: &List) -> Result<u8> {
    let mut text = String::new();
    for scenario in SCENARIOS {
        text += &format!("{:<12} {}: {}\n", scenario.name, scenario.title, scenario.about);
        for spec in (scenario.cells)(arguments.stacks.profile) {
            text += &format!("    {}\n", spec.cell.name);
        }
    }
    text += "\n";
    for entry in stack::find(&arguments.stacks.wanted()) {
        let stack = entry.described;
        match stack.missing {
            None => {
                text += &format!(
                    "{:<12} {}\n             {}\n",
                    stack.name, stack.version, stack.command
                )
            }
            Some(why) => text += &format!("{:<12} missing: {why}\n", stack.name),
        }
    }
    print(&text)?;
    Ok(0)
}

pub(crate) fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader of a pipe may close it early, as head(1) does.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// Runs `pontoon-bench load-server`.
///
/// # Errors
/// See [`load::serve`].
fn server(arguments: &LoadServer) -> Result<u8> {
    load::serve(arguments.listen)?;
    Ok(0)
}

/// Runs `pontoon-bench load-client`.
///
/// # Errors
/// See [`load::work`].
fn client(arguments: &LoadClient) -> Result<u8> {
    let job_spec = serde_json::from_str(&arguments.job_spec).context("invalid job")?;
    if let Some(name) = &arguments.congestion_control
        && let Err(error) = network::set_congestion_control(name)
    {
        let message = JobMessage::Unreachable {
            why: format!("{error:#}"),
        };
        print(&format!("{}\n", serde_json::to_string(&message)?))?;
        return Ok(0);
    }
    load::work(arguments.server, job_spec)?;
    Ok(0)
}

/// Runs `pontoon-bench tap-guest`. Returns the exit status of its command.
///
/// # Errors
/// See [`tap_guest::run`].
fn tap_guest(arguments: &TapGuest) -> Result<u8> {
    let status = tap_guest::run(arguments)?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1))
}

/// Runs `pontoon-bench first-byte`: prints a line when the byte has come back.
///
/// # Errors
/// The server cannot be reached, or closes the connection.
fn first_byte(arguments: &FirstByte) -> Result<u8> {
    let mut stream = TcpStream::connect((arguments.server, arguments.port))?;
    stream.write_all(&[1])?;
    stream.read_exact(&mut [0])?;
    print("back\n")?;
    Ok(0)
}
