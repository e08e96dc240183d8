//! Chores of the workspace: `cargo xtask test` is everything that CI does.

mod need;
mod ring;
mod step;
mod test;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("test") if arguments.len() == 1 => test::run(),
        _ => {
            eprintln!("usage: cargo xtask test");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
