//! The `pontoon` program: parses the command line and executes its verb.

use std::process::ExitCode;

use clap::Parser;
use pontoon_process::error::one_line;

mod args;
mod bench;
mod compat;
mod completions;
mod ctl;
mod doctor;
mod log;
mod man;
mod relay;
mod run;
mod top;
mod usage;
mod values;
mod vm;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if let Some(status) = words
        .next()
        .and_then(|name| compat::run_as(&name, || words.collect()))
    {
        return status;
    }
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::explain(&error),
    };
    match cli.verb {
        args::Verb::Run(arguments) => run::run(*arguments),
        args::Verb::Vm(arguments) => vm::run(*arguments),
        args::Verb::Ctl(arguments) => end(ctl::ctl(&arguments).map(|()| 0)),
        args::Verb::Top(arguments) => end(top::top(&arguments).map(|()| 0)),
        args::Verb::Relay(arguments) => relay::run(*arguments),
        args::Verb::Compat(arguments) => compat::compat(arguments),
        args::Verb::Doctor(arguments) => doctor::run(&arguments),
        args::Verb::Bench { arguments } => bench::exec(&arguments),
        args::Verb::Man(arguments) => man::man(&arguments),
        args::Verb::Completions(arguments) => completions::completions(&arguments),
    }
}

/// Returns the exit status for the result of a verb; prints an error in one line.
fn end(result: anyhow::Result<u8>) -> ExitCode {
    match result {
        Ok(status) => status.into(),
        Err(error) => {
            eprintln!("error: {}", one_line(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}
