//! Reports command-line errors of `pontoon-bench` in one line.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Exit status of a wrong command line.
const STATUS: u8 = 2;

/// Prints help and version as clap formats them, and an error in one line with advice. Returns the exit status.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // The reader of a pipe may close it early.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("error: {}", one_line(error));
            STATUS.into()
        }
    }
}

/// Returns the error message up to the first empty line, followed by `(try: ...)`.
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
