//! Exit reasons of child processes.

use std::fmt;

use crate::error::one_line;

/// Reason why a child process has exited or was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// The process has reported this error, or has violated the protocol of its channel.
    Reported(String),
    /// The signal with this number has killed the process.
    Killed(u8),
    /// The process has exited with this status.
    Exited(u8),
    /// The process did not report within the timeout that it is ready, and was killed.
    Unresponsive,
}

impl ExitReason {
    /// Returns the reason for an exit status of [`Child::wait`](super::spawn::Child::wait).
    pub(super) fn of_status(status: u8) -> Self {
        match status {
            129.. => Self::Killed(status - 128),
            status => Self::Exited(status),
        }
    }
}

/// Formats the reason as the text that follows the name of the process and a colon.
impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(why) => f.write_str(&one_line(why)),
            Self::Killed(signal) => write!(f, "killed by signal {signal}"),
            Self::Exited(status) => write!(f, "exited with status {status}"),
            Self::Unresponsive => f.write_str("did not become ready in time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_reason_is_one_line() {
        let reason = ExitReason::Reported("a\nerror: b\x1b[2J".to_owned());
        assert_eq!(reason.to_string(), "a error: b [2J");
    }

    #[test]
    fn status_above_128_is_a_signal() {
        let texts = [0, 101, 128, 137].map(|status| ExitReason::of_status(status).to_string());
        let wanted = [
            "exited with status 0",
            "exited with status 101",
            "exited with status 128",
            "killed by signal 9",
        ];
        assert_eq!(texts, wanted);
    }
}
