//! Standard input and output of Pontoon, which belong to the command: the peer of a pipe receives end-of-file when the
//! command closes the pipe, not when this process exits.

use std::fs::File;
use std::io;

/// Replaces standard input and output of this process by `/dev/null`.
///
/// # Errors
/// `/dev/null` cannot be opened.
pub fn leave_to_the_command() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Replaces standard input, output and error of this process by `/dev/null`, if it writes no more log lines.
///
/// # Errors
/// Same as [`leave_to_the_command`].
pub fn leave_all_to_the_command() -> io::Result<()> {
    leave_to_the_command()?;
    rustix::stdio::dup2_stderr(io::stdout())?;
    Ok(())
}
