//! Standard input and output are the command's: a pipe ends when the command lets go of it, not when we do.

use std::fs::File;
use std::io;

/// Puts `/dev/null` in the place of standard input and output.
///
/// # Errors
/// There is no `/dev/null`.
pub fn leave_to_the_command() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// The same, and standard error, for a process that has nothing more to say.
///
/// # Errors
/// As [`leave_to_the_command`].
pub fn leave_all_to_the_command() -> io::Result<()> {
    leave_to_the_command()?;
    rustix::stdio::dup2_stderr(io::stdout())?;
    Ok(())
}
