//! Chores of the workspace: `cargo xtask test` is everything that CI does, `bench-ab` compares revisions, `kernel` fetches
//! what the tests' virtual machines run, `fuzz` and `simulate` go on for as long as they are told to.

mod asan;
mod bench_ab;
mod deny;
mod fuzz;
mod kernel;
mod need;
mod ring;
mod rustup;
mod simulate;
mod step;
mod test;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("test") if arguments.len() == 1 => test::run(),
        Some("kernel") if arguments.len() == 1 => kernel::fetch(&target()).map(|()| true),
        Some("bench-ab") if arguments.len() > 1 => bench_ab::run(&arguments[1..]),
        Some("fuzz") => fuzz::run(&arguments[1..]),
        Some("simulate") => simulate::run(&arguments[1..]),
        _ => {
            eprintln!(
                "usage: cargo xtask test\n       cargo xtask kernel\n       {}\n       {}\n       {}",
                bench_ab::USAGE,
                fuzz::USAGE,
                simulate::USAGE
            );
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

/// This toolchain's cargo.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace());
    command
}

/// Where cargo builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
