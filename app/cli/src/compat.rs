//! Verb `pontoon compat`: command lines of other programs, under whose names Pontoon can be executed. Each command line
//! is translated into one of Pontoon and has no other effect. Each program has its own file.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{CompatArgs, CompatCommand};
use crate::{end, run, usage, vm};

mod getopt;
mod links;
mod passt;
mod pasta;
mod slirp4netns;

pub(crate) use links::is_pontoon;

/// Program whose command line can be translated.
struct Tool {
    name: &'static str,
    /// Function that translates a command line. Its first argument is the name by which the program was executed.
    translate: fn(&str, Vec<OsString>) -> Result<Translation, Failure>,
    /// Function that returns the text of `--help`, for the name by which the program is executed.
    usage: fn(&str) -> String,
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "passt",
        translate: passt::translate,
        usage: passt::usage,
    },
    Tool {
        name: "pasta",
        translate: pasta::translate,
        usage: pasta::usage,
    },
    Tool {
        name: "slirp4netns",
        translate: slirp4netns::translate,
        usage: slirp4netns::usage,
    },
];

/// Translation of a command line of another program.
#[derive(Debug, PartialEq, Eq)]
enum Translation {
    /// Text that is printed to standard output.
    Print(String),
    /// Arguments with which `pontoon` is executed. Exit statuses other than 0 become 1.
    Run(Vec<OsString>),
    /// Same with a command, whose exit status is that of the program.
    Command(Vec<OsString>),
}

/// Refusal of a command line.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    /// Text for standard error; empty if only the usage is printed.
    text: String,
    /// Usage for standard output.
    usage: Option<String>,
}

impl Failure {
    fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            usage: None,
        }
    }

    fn with_usage(self, usage: String) -> Self {
        Self {
            usage: Some(usage),
            ..self
        }
    }
}

/// Runs the program whose name is the file name of `program`, the first word of the command line; `None` if there is no
/// such program.
pub(crate) fn run_as(program: &OsStr, arguments: impl FnOnce() -> Vec<OsString>) -> Option<ExitCode> {
    let name = Path::new(program).file_name()?;
    let tool = find(name)?;
    Some(tool.run(&program.to_string_lossy(), arguments()))
}

/// Returns the names of the programs.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    TOOLS.iter().map(|tool| tool.name)
}

/// Returns the name of each program and the text of its `--help`.
pub(crate) fn usages() -> impl Iterator<Item = (&'static str, String)> {
    TOOLS.iter().map(|tool| (tool.name, (tool.usage)(tool.name)))
}

/// Verb `pontoon compat`.
pub(crate) fn compat(arguments: CompatArgs) -> ExitCode {
    match arguments.command {
        None => {
            print(&names().map(|name| format!("{name}\n")).collect::<String>());
            ExitCode::SUCCESS
        }
        Some(CompatCommand::Install { directory }) => report(links::install(&directory, names())),
        Some(CompatCommand::Remove { directory }) => report(links::remove(&directory, names())),
        Some(CompatCommand::Tool(mut words)) => {
            // clap adds this variant only for a word that is not an option.
            let name = words.remove(0);
            if let Some(tool) = find(&name) {
                return tool.run(tool.name, words);
            }
            let all: Vec<_> = names().collect();
            let (name, all) = (name.display(), all.join(", "));
            eprintln!("error: no program '{name}' (try: {all}, install, remove)");
            usage::STATUS.into()
        }
    }
}

/// Prints the lines of a subcommand, or its error, and returns the exit status.
fn report(lines: anyhow::Result<String>) -> ExitCode {
    end(lines.map(|lines| {
        print(&lines);
        0
    }))
}

/// Prints to standard output. A closed pipe is not an error.
pub(crate) fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

fn find(name: &OsStr) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name)
}

impl Tool {
    /// Executes a command line of the program. The exit status is 0 or 1, or that of a command.
    fn run(&self, program: &str, arguments: Vec<OsString>) -> ExitCode {
        match (self.translate)(program, arguments) {
            Ok(Translation::Print(text)) => {
                print(&text);
                ExitCode::SUCCESS
            }
            Ok(Translation::Run(words)) => match execute(program, &words) {
                ExitCode::SUCCESS => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            },
            Ok(Translation::Command(words)) => execute(program, &words),
            Err(Failure { text, usage }) => {
                if !text.is_empty() {
                    eprintln!("{text}");
                }
                print(&usage.unwrap_or_default());
                ExitCode::FAILURE
            }
        }
    }
}

/// Command line of one verb. The other verbs are not described to clap, which would take longer than the rest of the parsing.
#[derive(Debug, Parser)]
struct VerbLine<A: clap::Args> {
    #[command(flatten)]
    arguments: A,
}

/// Executes `pontoon` with `words` in this process; the first word is the verb.
fn execute(program: &str, words: &[OsString]) -> ExitCode {
    let status = match words.first().map(|verb| verb.as_encoded_bytes()) {
        Some(b"run") => VerbLine::try_parse_from(words).map(|line| run::run(line.arguments)),
        Some(b"vm") => VerbLine::try_parse_from(words).map(|line| vm::run(line.arguments)),
        _ => unreachable!("programs are translated into the verbs run and vm"),
    };
    match status {
        Ok(status) => status,
        Err(error) => {
            eprintln!(
                "{program}: {}",
                usage::one_line(&error, &format!("{program} --help"))
            );
            ExitCode::FAILURE
        }
    }
}
