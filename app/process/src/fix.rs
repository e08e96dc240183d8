//! Remedies for errors and findings: commands where a command suffices.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Remedy for an error of the host: a command, or a change in words if no single command makes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fix {
    /// The command, or the change.
    pub command: String,
    /// True if the command has to be executed by root.
    pub as_root: bool,
    /// Another remedy, in words.
    pub alternative: Option<String>,
}

/// Text in front of commands for root.
const AS_ROOT: &str = "as root: ";

impl Fix {
    /// Creates a remedy for the user.
    pub fn user(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            as_root: false,
            alternative: None,
        }
    }

    /// Creates a command for root.
    pub fn root(command: impl Into<String>) -> Self {
        Self {
            as_root: true,
            ..Self::user(command)
        }
    }

    /// Adds another remedy, in words.
    #[must_use]
    pub fn or(mut self, alternative: impl Into<String>) -> Self {
        self.alternative = Some(alternative.into());
        self
    }

    /// Creates a remedy from the advice of an error.
    #[must_use]
    pub fn of_advice(advice: &str) -> Self {
        advice
            .strip_prefix(AS_ROOT)
            .map_or_else(|| Self::user(advice), Self::root)
    }
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.as_root {
            f.write_str(AS_ROOT)?;
        }
        f.write_str(&self.command)?;
        match &self.alternative {
            Some(alternative) => write!(f, ", or {alternative}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_for_root_are_marked() {
        let fix = Fix::root("modprobe tun");
        assert_eq!(fix.to_string(), "as root: modprobe tun");
        assert_eq!(Fix::of_advice("as root: modprobe tun"), fix);
        assert_eq!(Fix::of_advice("--workers 1"), Fix::user("--workers 1"));
        let fix = fix.or("another kernel");
        assert_eq!(fix.to_string(), "as root: modprobe tun, or another kernel");
    }
}
