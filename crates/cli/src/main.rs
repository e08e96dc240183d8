//! People: the command line.

use std::process::ExitCode;

use clap::Parser;

mod args;
mod log;
mod run;
mod usage;
mod values;

fn main() -> ExitCode {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::explain(&error),
    };
    match cli.verb {
        args::Verb::Run(arguments) => run::run(*arguments),
    }
}
