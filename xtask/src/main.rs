//! Chores of the workspace: `cargo xtask test` is everything that CI does, `cargo xtask bench-ab` compares revisions.

mod bench_ab;
mod need;
mod ring;
mod step;
mod test;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("test") if arguments.len() == 1 => test::run(),
        Some("bench-ab") if arguments.len() > 1 => bench_ab::run(&arguments[1..]),
        _ => {
            eprintln!("usage: cargo xtask test\n       {}", bench_ab::USAGE);
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

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Where cargo builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}
