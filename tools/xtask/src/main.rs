//! Tasks of the workspace. `setup` installs the programs that the tests need. `check` runs the quick tests (`rules`
//! its checks of dependencies, words and references), and `test` all of them. `bench-ab` compares revisions, `kernel`
//! downloads the kernel of the tests' virtual machines, `fuzz` and `simulate` run for a given time or number of
//! seeds, `clients` runs other projects' programs with Pontoon instead of slirp4netns or pasta, `dist` builds packages, and
//! `library` builds the library for C programs.
//! `profiles` generates and compiles the profiles of Linux security modules, and `machines` runs end-to-end cases in virtual
//! machines with other kernels.

mod api;
mod asan;
mod bench_ab;
mod check;
mod clients;
mod corpus;
mod cross;
mod debian;
mod deny;
mod dist;
mod fuzz;
mod kernel;
mod layers;
mod library;
mod machines;
mod packages;
mod profiles;
mod references;
mod ring;
mod rustup;
mod setup;
mod simulate;
mod step;
mod test;
mod words;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("setup") if arguments.len() == 1 => setup::run().map(|()| true),
        Some("check") if arguments.len() == 1 => check::run(),
        Some("rules") if arguments.len() == 1 => check::rules().map(|broken| broken == 0),
        Some("test") if arguments.len() == 1 => test::run(),
        Some("kernel") if arguments.len() == 1 => kernel::fetch(&target()).map(|()| true),
        Some("profiles") if arguments.len() == 1 => profiles::run(),
        Some("machines") => machines::run(&arguments[1..]),
        Some("bench-ab") if arguments.len() > 1 => bench_ab::run(&arguments[1..]),
        Some("fuzz") => fuzz::run(&arguments[1..]),
        Some("clients") => clients::run(&arguments[1..]),
        Some("corpus") => corpus::run(&arguments[1..]),
        Some("dist") => dist::run(&arguments[1..]),
        Some("library") => library::run(&arguments[1..]),
        Some("simulate") => simulate::run(&arguments[1..]),
        _ => {
            eprintln!(
                "usage: cargo xtask setup\n       cargo xtask check\n       cargo xtask rules\n       cargo xtask test\n       cargo xtask kernel\n       cargo xtask profiles\n       {}\n       {}\n       {}\n       {}\n       {}\n       {}\n       {}\n       {}",
                bench_ab::USAGE,
                clients::USAGE,
                dist::USAGE,
                fuzz::USAGE,
                library::USAGE,
                machines::USAGE,
                corpus::USAGE,
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

/// Returns a command of the cargo that runs this program.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace());
    command
}

/// Returns the command that installs a subcommand of cargo. The subcommands run for seconds: a release build with full
/// optimisation would take longer than all their runs.
fn install(package: &str) -> Command {
    let mut command = cargo(&["install", "--locked", package]);
    command
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_STRIP", "true");
    command
}

/// Returns cargo's build directory.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
