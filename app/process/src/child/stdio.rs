//! Standard input and output belong to the command: the peer of a pipe sees its end when the command closes it, not when this
//! process exits.

use std::fs::File;
use std::io;

/// Replaces standard input and output by `/dev/null`.
///
/// # Errors
/// There is no `/dev/null`.
pub fn leave_to_the_command() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Replaces standard error, too, for a process that writes nothing more.
///
/// # Errors
/// As [`leave_to_the_command`].
pub fn leave_all_to_the_command() -> io::Result<()> {
    leave_to_the_command()?;
    rustix::stdio::dup2_stderr(io::stdout())?;
    Ok(())
}
