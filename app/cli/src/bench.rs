//! Verb `pontoon bench`: replaces this process by the program `pontoon-bench`.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const PROGRAM: &str = "pontoon-bench";

/// Exit statuses of shells where a program is missing, or cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Executes `pontoon-bench` from the directory of this program, or else from `PATH`. Returns only if that fails.
pub(crate) fn exec(arguments: &[OsString]) -> ExitCode {
    let error = Command::new(program()).args(arguments).exec();
    if error.kind() == io::ErrorKind::NotFound {
        eprintln!(
            "error: {PROGRAM} is neither beside pontoon nor on PATH (try: cargo build --release -p {PROGRAM})"
        );
        return NOT_FOUND.into();
    }
    eprintln!("error: cannot run {PROGRAM}: {error}");
    NOT_EXECUTABLE.into()
}

fn program() -> PathBuf {
    std::env::current_exe()
        .map(|this| this.with_file_name(PROGRAM))
        .ok()
        .filter(|beside| beside.is_file())
        .unwrap_or_else(|| PROGRAM.into())
}
