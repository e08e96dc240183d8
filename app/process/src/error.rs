//! Errors that are printed for the user: one line each, with optional advice.

use std::fmt;
use std::io;

use crate::fix::Fix;

/// Failure of Pontoon with its exit status, as opposed to a failure of the guest's command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    what: String,
    advice: Option<String>,
    status: u8,
}

impl Error {
    /// Creates an error from a text that names the operation, its object and the reason.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            advice: None,
            status: FAILED,
        }
    }

    /// Creates an error from the operation that failed and the operating system's reason.
    #[must_use]
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(format!("{what}: {}", reason(error)))
    }

    /// Adds advice, which is printed in parentheses after the error.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Adds a remedy as advice.
    #[must_use]
    pub fn with_fix(self, fix: &Fix) -> Self {
        self.advise(fix.to_string())
    }

    /// Sets the exit status of the program, which is 1 by default.
    #[must_use]
    pub fn with_status(mut self, status: u8) -> Self {
        self.status = status;
        self
    }

    /// Returns the exit status of the program.
    #[must_use]
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Returns the text, the advice and the exit status, to be sent to another process.
    pub fn parts(&self) -> (&str, Option<&str>, u8) {
        (&self.what, self.advice.as_deref(), self.status)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.what))?;
        match &self.advice {
            Some(advice) => write!(f, " (try: {})", one_line(advice)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// Replaces control characters by spaces, so that text from a child process or a guest can neither begin a log line nor
/// control a terminal.
pub fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Extension of results of system calls, which names the operation that failed.
pub trait Context<T> {
    /// Converts the operating system's error into an [`Error`] that begins with `what`.
    fn context(self, what: impl fmt::Display) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T, Error> {
        self.map_err(|error| Error::io(what, &error.into()))
    }
}

/// Returns the operating system's reason of an error in lower case, without its number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error ").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        // An abbreviation keeps its case.
        Some(first) if !letters.as_str().starts_with(char::is_uppercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}

/// Exit status of failures of Pontoon; usage errors have 2.
const FAILED: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_with_advice() {
        let refused = io::Error::from_raw_os_error(libc::EACCES);
        let error = Error::io("cannot open /dev/net/tun", &refused).advise("chmod 666 /dev/net/tun");
        assert_eq!(
            error.to_string(),
            "cannot open /dev/net/tun: permission denied (try: chmod 666 /dev/net/tun)"
        );
        assert_eq!(error.status(), 1);
    }

    #[test]
    fn abbreviations_keep_their_case() {
        assert_eq!(reason(&io::Error::other("EOF came early")), "EOF came early");
    }
}
