//! Errors of the command line, in one line.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Exit status of wrong usage.
const STATUS: u8 = 2;

/// Prints help and the version as they are, and an error in one line with advice. Returns the exit status.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe is not an error.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("error: {}", one_line(error));
            STATUS.into()
        }
    }
}

/// The message up to the first empty line, and what to try.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines: Vec<_> = text
        .trim_start_matches("error: ")
        .lines()
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let message = lines.join(" ");
    if message.ends_with(')') && message.contains("(try: ") {
        return message;
    }
    let suggested = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(one)) => Some(one.as_str()),
        Some(ContextValue::Strings(several)) => several.first().map(String::as_str),
        _ => None,
    };
    format!("{message} (try: {})", suggested.unwrap_or("pontoon bench --help"))
}
