//! Output of usage errors: one line, with advice.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Exit status of usage errors.
pub(crate) const STATUS: u8 = 2;

/// Prints the message of clap: help and version unchanged, errors in one line. Returns the exit status.
pub(crate) fn explain(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe on standard output is not an error.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            STATUS.into()
        }
        _ => {
            let verb = std::env::args().nth(1).filter(|verb| {
                ["completions", "ctl", "doctor", "man", "relay", "top", "vm"].contains(&verb.as_str())
            });
            let help = format!("pontoon {} --help", verb.as_deref().unwrap_or("run"));
            eprintln!("error: {}", one_line(error, &help));
            STATUS.into()
        }
    }
}

/// Returns a usage error in one line: clap's text up to the first empty line, with its tip, or with `help`, the command that
/// prints the help, as advice.
pub(crate) fn one_line(error: &clap::Error, help: &str) -> String {
    let text = error.to_string();
    let what: Vec<_> = text
        .trim_start_matches("error: ")
        .lines()
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let what = what.join(" ");
    if what.ends_with(')') && what.contains("(try: ") {
        return what;
    }
    let suggested = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(one)) => Some(one.as_str()),
        Some(ContextValue::Strings(several)) => several.first().map(String::as_str),
        _ => None,
    };
    format!("{what} (try: {})", suggested.unwrap_or(help))
}
